"""Products that are rounded to 16 bits, made in 16 bits: where that is the same to the last bit, and only there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.half_products import halve_products
from cutile.backend.cuda.intrinsics.arith import binary
from cutile.backend.cuda.intrinsics.cast import convert
from cutile.backend.cuda.intrinsics.llvm import I32
from cutile.backend.gpu.layout import blocked
from cutile.backend.reference.interpret import run_block
from cutile.dtypes import DTypeLike, bf16, f16, f32, i8, i16, i32, u8, u16
from cutile.ir.core import Function
from cutile.ir.verify import verify
from cutile.passes.pipeline import run_passes
from tests.backend.cuda.emulated import Emulated, Vector, collect, scatter
from tests.support.programs import mut, program, tensor

HALVES = pytest.mark.parametrize("half", [bf16, f16], ids=str)


def scaled(whole: str, *, half: DTypeLike = bf16, by: DTypeLike | None = None, of: DTypeLike = i8) -> Function:
    """A kernel that stores whole numbers with a scale for each column."""
    text = (
        "def k(z: Mut, w: Tensor, s: Tensor):\n"
        "    BM, BN = z.shape\n"
        "    w = ct.load_tile(w, (BM,), (0,)).reshape((BM, 1))\n"
        "    by = ct.load_tile(s, (BN,), (0,)).reshape((1, BN)).astype(ct.f32)\n"
        f"    z.store((({whole}) * by).astype(z.dtype))\n"
    )
    given = {"z": mut(256, 64, dtype=half), "w": tensor(1, of), "s": tensor(1, by or half)}
    return run_passes(program(text, given))


def ran(function: Function, *arguments: Any) -> Any:
    """What a kernel of one tile block stores, by NumPy."""
    z = np.zeros((256, 64), function.parameters[0].type.tensor.dtype.numpy)  # type: ignore[attr-defined]
    run_block(function, dict(zip(function.parameters, (z, *arguments), strict=True)), (0, 0, 0), (1, 1, 1))
    return z


@HALVES
@pytest.mark.parametrize(
    ("whole", "of"),
    [
        ("w.astype(ct.f32)", i8),
        ("w.astype(ct.f32)", u8),
        ("(w & 15).astype(ct.f32) - 8.0", u8),
        ("8.0 - (w >> 4).astype(ct.f32)", u8),
        ("(w >> 3).astype(ct.f32) + (w & 7).astype(ct.f32)", u8),
        ("((w >> 4) & 15).astype(ct.f32)", i8),
        *((f"((w >> {count}) & 15).astype(ct.f32)", i8) for count in (8, 9, 17, "(w & 31)")),
        ("((w >> (w & 31)) & 15).astype(ct.f32)", u8),
    ],
)
def test_a_whole_number_with_a_scale_is_the_same_in_16_bits(half: DTypeLike, whole: str, of: DTypeLike) -> None:
    function = scaled(whole, half=half, of=of)
    halved = halve_products(function)
    verify(halved)
    assert not any(value.tile.dtype is f32 for op in halved.walk() for value in op.results if op.name != "constant")
    w = np.arange(256, dtype=np.uint8).view(of.numpy)
    scales = np.concatenate((np.linspace(-3, 3, 48), [0.0, -0.0, np.inf, -np.inf, 3e38, 1e-39, 6e-8, 65504.0], 8 * [1]))
    with np.errstate(all="ignore"):
        first, second = (ran(each, w, scales.astype(half.numpy)) for each in (function, halved))
    same = (first.view(np.uint16) == second.view(np.uint16)) | (np.isnan(first) & np.isnan(second))
    assert same.all()
    assert np.isinf(first).any()
    assert np.isnan(first).any()


@pytest.mark.parametrize(
    ("whole", "facts"),
    [
        ("w.astype(ct.f32)", {"by": f32}),  # a scale of more bits
        ("w.astype(ct.f32)", {"of": i16}),  # numbers of more bits
        ("w.astype(ct.f32)", {"of": bf16}),  # a product of two halves may be too small for f32, and is rounded twice
        ("w.astype(ct.f32) + 200.0", {"of": u8}),  # a sum that 16 bits do not hold
        ("w.astype(ct.f32) * 0.5", {}),
        ("w.astype(ct.f32) - 0.5", {}),
        ("ct.constant(float('inf'), (256, 64), ct.f32)", {}),
        ("ct.constant(float('nan'), (256, 64), ct.f32)", {}),
    ],
)
def test_what_would_be_rounded_otherwise_is_left(whole: str, facts: dict[str, Any]) -> None:
    function = scaled(whole, **facts)
    assert halve_products(function) is function


class _Bits(Emulated):
    """Adds what moves bytes, and multiplies and adds two halves at once."""

    def call(self, function: Any, operands: Sequence[Any], attrs: Sequence[str] = ()) -> Vector | None:
        if isinstance(function, str):
            return super().call(function, operands, attrs)
        words = [np.broadcast_to(self._of(each), self._threads).astype(np.uint32) for each in operands]
        if function.asm.startswith("prmt.b32"):
            found = re.search(r"0x([0-9a-f]{4});", function.asm)
            assert found is not None
            places = [int(digit, 16) for digit in reversed(found[1])]
            both = np.stack(words[:2], 1).view(np.uint8).reshape(-1, 8)
            return Vector(I32, np.ascontiguousarray(both[:, places]).view(np.uint32)[:, 0])
        (half,) = (each for each in (bf16, f16) if function.asm.startswith(f"fma.rn.{each.name}x2"))
        x, y, z = (each.view(half.numpy).astype(np.float64) for each in words)
        return Vector(I32, (x * y + z).astype(half.numpy).view(np.uint32))


@pytest.mark.parametrize("target", [bf16, f16, u16], ids=str)
@pytest.mark.parametrize("source", [i8, u8], ids=str)
def test_bytes_become_16_bits_by_their_bits(source: DTypeLike, target: DTypeLike) -> None:
    layout = blocked((16, 16), 2, 1)
    values = np.arange(256, dtype=np.uint8).view(source.numpy).reshape(16, 16)
    made = convert(source, target, layout.registers)
    got = collect(made.generate(_Bits(layout.threads), [scatter(values, layout, source)]), layout, target)
    np.testing.assert_array_equal(got.view(np.uint16), values.astype(target.numpy).view(np.uint16))


@pytest.mark.parametrize("counts", [(4, 4), (0, 0), (15, 15), (16, 16), (4, 5), (40000, 3)])
def test_two_of_16_bits_are_shifted_in_one_word(counts: tuple[int, int]) -> None:
    layout = blocked((16, 16), 2, 1)
    values = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    by = np.broadcast_to(np.array(counts, np.uint16), (8, 2)).reshape(-1)
    by = np.broadcast_to(by, (16, 16))
    shift = binary("shr", u16, layout.registers)
    fragments = [scatter(each, layout, u16) for each in (values, by)]
    got = collect(shift.generate(_Bits(layout.threads), fragments), layout, u16)
    wanted = np.where(by < 16, values.astype(np.uint32) >> np.minimum(by, 15), 0)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_bits_of_two_of_16_are_combined_in_one_word(name: str) -> None:
    layout = blocked((16, 16), 2, 1)
    values = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257
    mask = np.broadcast_to(np.array([0x0F0F, 0xFF80] * 8, np.uint16), (16, 16))
    fragments = [scatter(each, layout, u16) for each in (values, mask)]
    got = collect(binary(name, u16, layout.registers).generate(_Bits(layout.threads), fragments), layout, u16)
    np.testing.assert_array_equal(got, getattr(np, f"bitwise_{name}")(values, mask))


def test_a_kernel_without_such_products_is_itself() -> None:
    function = scaled("w.astype(ct.f32)", of=i32)
    assert halve_products(function) is function
    assert Counter(op.name for op in function.walk())["mul"] == 1


def test_a_sum_of_sums_is_looked_at_once() -> None:
    """Each tile is both operands of the next: one look for each use would be 2**60."""
    doubled = "    w = w + w\n" * 60
    text = "def k(z: Mut, x: Tensor, s: Tensor):\n    w = ct.load_tile_like(x, z).astype(ct.f32)\n" + doubled
    text += "    z.store((w * ct.load_tile_like(s, z).astype(ct.f32)).astype(z.dtype))\n"
    function = run_passes(program(text, {"z": mut(64, dtype=bf16), "x": tensor(1, bf16), "s": tensor(1, bf16)}))
    assert halve_products(function) is function
