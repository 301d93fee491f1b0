"""Conversions, pair by pair: every backend gives the bits that `cutile.conversion` says, and it says what it should.

Types of 8 and 16 bits are tried with every pattern; wider ones with ties, edges, subnormals and random bits.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from cuda_async import Device
from cutile import api
from cutile.conversion import MEANING, ROUNDINGS, convert, exact, fits, round_to
from cutile.dtypes import (
    EVERY_DTYPE,
    DTypeLike,
    bf16,
    bool_,
    f4e2m1fn,
    f4e2m1fnx2,
    f8e4m3fn,
    f8e5m2,
    f8e8m0fnu,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u8,
    u16,
    u32,
    u64,
)
from cutile.errors import KernelTypeError
from cutile.launch.target import INTERPRET, use_backend
from tests.support.devices import on as on_any
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, cases_on_backends

Array = Any
NUMBERS = tuple(each for each in EVERY_DTYPE if each is not f4e2m1fnx2)
FLOATS = tuple(each for each in NUMBERS if each.format is not None)
WHOLE = tuple(each for each in NUMBERS if each.kind in ("int", "uint"))
TILE = 1024
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def patterns(dtype: DTypeLike) -> Array:
    """Elements to convert, a whole number of tiles of them."""
    rng = np.random.default_rng(5)
    if dtype is bool_:
        return np.tile(np.array([False, True]), TILE // 2)
    if dtype.bits <= 16:
        every = np.arange(1 << dtype.bits, dtype=_UNSIGNED[dtype.bits // 8])
        return np.resize(every, max(every.size, TILE)).view(dtype.numpy)
    random = rng.integers(0, 1 << 32, 2 * TILE, np.uint64) << 32 | rng.integers(0, 1 << 32, 2 * TILE, np.uint64)
    if dtype.format is None:
        near = np.array([1, 1 << 31, 1 << 32, 1 << 53, 1 << 63, 255, 256, 65504, 65520, 57344], np.uint64)
        spread = (np.uint64(1) << rng.integers(0, 64, TILE, np.uint64)) + rng.integers(0, 3, TILE, np.uint64)
        edges = np.concatenate([near - 1, near, near + 1, ~near, spread])
        return np.resize(np.concatenate([random, edges]), 4 * TILE).astype(_UNSIGNED[dtype.bits // 8]).view(dtype.numpy)
    ties = np.ldexp(rng.integers(-64, 64, 3 * TILE) + 0.5, rng.integers(-160, 140, 3 * TILE))
    nudged = np.nextafter(ties, rng.choice([-np.inf, np.inf], ties.size))
    small = np.ldexp(rng.integers(-64, 64, TILE) / 4, rng.integers(-20, 34, TILE))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 480, 57344, 61440, 65504, 65520, 6, 5, 7])
    with np.errstate(over="ignore"):
        numbers = np.concatenate([ties, nudged, small, special]).astype(dtype.numpy)
    bits = random.astype(_UNSIGNED[dtype.bits // 8]).view(dtype.numpy)
    return np.resize(np.concatenate([numbers, bits]), 10 * TILE)


def tensor(array: Array, dtype: DTypeLike) -> api.Tensor:
    bytes_ = np.ascontiguousarray(array).view(np.uint8)
    return api.from_numpy(bytes_).sync().reinterpret(dtype, array.shape)


@contextmanager
def on(backend: str) -> Generator[None]:
    """Kernels and tensors of a backend."""
    chosen = use_backend(backend) if backend != "cuda" else nullcontext()
    with Device(0) if backend == "cuda" else Device.host(), chosen:
        yield


def run(backend: str, text: str, source: DTypeLike, targets: tuple[DTypeLike, ...], x: Array) -> list[Array]:
    with on(backend):
        outputs = [api.empty((x.size,), each).sync().partition((TILE,)) for each in targets]
        done = kernel(text)(*outputs, tensor(x, source)).sync()
        return [done[i].unpartition().to_numpy().sync() for i in range(len(targets))]


def assert_same(got: Array, expected: Array, x: Array, target: DTypeLike, what: str) -> None:
    """Bit by bit, but for which NaN it is."""
    carrier = _UNSIGNED[target.bits // 8]
    different = got.view(carrier) != expected.view(carrier)
    if target.format is not None and target.format.nan is not None:
        with np.errstate(invalid="ignore"):
            different &= ~(np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64)))
    at = np.flatnonzero(different)[:5]
    assert not at.size, f"{what}: {different.sum()} of {x.size}: {x[at]} gave {got[at]}, wanted {expected[at]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "backend"),
    # On the CPU from each width of integers, and with a sign or without, but not each width with both.
    cases_on_backends([(dtype,) for dtype in NUMBERS], lambda source: source not in (i16, u8, u32, i64)),
)
def test_from_a_type_to_every_other(source: DTypeLike, backend: str) -> None:
    x = patterns(source)
    targets = NUMBERS
    if backend == "cpu" and source in FLOATS and source.bits < 32:  # by way of f32, from which all are compiled
        targets = NUMBERS[NUMBERS.index(source) % 2 :: 2]
    names = [f"y{i}" for i in range(len(targets))]
    forms = ("x.astype({0}.dtype)", "ct.convert_tile(x, {0}.dtype)")
    body = "".join(f"    {name}.store({forms[i % 2].format(name)})\n" for i, name in enumerate(names))
    text = f"def convert({', '.join(f'{n}: Mut' for n in names)}, z: Tensor):\n    x = ct.load_tile_like(z, y0)\n{body}"
    for target, got in zip(targets, run(backend, text, source, targets, x), strict=True):
        assert_same(got, convert(x, source, target), x, target, f"{source} to {target}")


@pytest.mark.parametrize("source", [each for each in NUMBERS if each is not tf32], ids=str)  # NumPy has no tf32
def test_arrays_of_the_host_are_converted_as_in_a_kernel(source: DTypeLike) -> None:
    x = patterns(source)
    for target in NUMBERS:
        got = api.from_numpy(x, target).to_numpy().sync()
        assert_same(got, convert(x, source, target), x, target, f"{source} to {target}")


def test_the_quick_way_to_bf16_rounds_as_the_general_one() -> None:
    x = patterns(f64)  # in long double, `convert` takes the general way
    assert_same(convert(x, f64, bf16), round_to(x.astype(np.longdouble), bf16), x, bf16, "f64 to bf16")


ROUNDED = (
    ("ftof", f64, FLOATS),
    ("ftof", f32, (f16, bf16, tf32, f8e4m3fn)),
    ("ftof", f8e5m2, (f8e4m3fn, f4e2m1fn, f8e8m0fnu)),
    ("itof", i64, FLOATS),
    ("itof", u64, (f64, f32, bf16)),
    ("itof", i32, (f32, f16, f8e5m2)),
    ("ftoi", f64, WHOLE),
    ("ftoi", f32, (i8, i32, u64)),
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("function", "source", "targets"), ROUNDED, ids=lambda each: getattr(each, "name", each))
def test_every_rounding(function: str, source: DTypeLike, targets: tuple[DTypeLike, ...], backend: str) -> None:
    x = patterns(source)
    targets = tuple(each for each in targets if each is not source)
    names = [f"y{i}" for i in range(len(targets))]
    modes = list(ROUNDINGS)
    if backend == "cpu":  # each compiles for a third of a second: every other mode, and the next row the others
        modes = modes[[str(each[:2]) for each in ROUNDED].index(str((function, source))) % 2 :: 2]
    for mode in modes:
        calls = (f"ct.{function}(x, {name}.dtype, rounding=ct.rounding.{mode.upper()})" for name in names)
        body = "".join(f"    {name}.store({call})\n" for name, call in zip(names, calls, strict=True))
        head = f"def rounded({', '.join(f'{n}: Mut' for n in names)}, z: Tensor):\n    x = ct.load_tile_like(z, y0)\n"
        for target, got in zip(targets, run(backend, head + body, source, targets, x), strict=True):
            wanted = convert(x, source, target, mode)
            assert_same(got, wanted, x, target, f"{function} {source} to {target}, {mode}")


# What the meaning itself should be, from other sources


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("source", [bool_, *WHOLE], ids=str)
def test_integers_by_width(source: DTypeLike, backend: str) -> None:
    """Wider ones with the sign, or zeros, in front; narrower ones with the low bits; scalars likewise."""
    x = patterns(source)[: 4 * TILE]
    width = 1 if source is bool_ else source.bits
    targets = tuple(each for each in WHOLE if each.bits != width)
    names = [f"y{i}" for i in range(len(targets))]
    head = f"def resized({', '.join(f'{n}: Mut' for n in names)}, s: Mut, z: Tensor):\n"
    body = "    x = ct.load_tile_like(z, y0)\n"
    for name, target in zip(names, targets, strict=True):
        function = "exti" if target.bits > width else "trunci"
        body += f"    {name}.store(ct.{function}(x, {name}.dtype))\n"
    body += "    one = ct.load_tile(z, (1,), (7 * ct.get_tile_block_id()[0],)).reshape(())\n"
    body += "    s.store(ct.convert_scalar(one, s.dtype))\n"
    with on(backend):
        outputs = [api.empty((x.size,), each).sync().partition((TILE,)) for each in targets]
        scalars = api.empty((x.size // TILE,), i32).sync().partition((1,))
        done = kernel(head + body)(*outputs, scalars, tensor(x, source)).sync()
        found = [each.unpartition().to_numpy().sync() for each in done[:-1]]
    for target, got in zip((*targets, i32), found, strict=True):
        given = x if len(got) == len(x) else x[7 * np.arange(len(got))]
        np.testing.assert_array_equal(got, given.astype(target.numpy), err_msg=f"{source} to {target}")


@pytest.mark.parametrize(("target", "source"), [(f16, f32), (f32, f64), (bf16, f32), (f16, f64)], ids=str)
def test_nearest_is_that_of_numpy(source: DTypeLike, target: DTypeLike) -> None:
    x = patterns(source)
    with np.errstate(all="ignore"):
        assert_same(convert(x, source, target), x.astype(target.numpy), x, target, f"{source} to {target}")


@pytest.mark.parametrize("target", [f8e4m3fn, f8e5m2, f4e2m1fn], ids=str)
def test_within_the_range_nearest_is_that_of_ml_dtypes(target: DTypeLike) -> None:
    x = patterns(f32)
    assert target.format is not None
    x = x[np.abs(x) <= target.format.largest]
    assert_same(convert(x, f32, target), x.astype(target.numpy), x, target, str(target))


@pytest.mark.parametrize("target", [each for each in FLOATS if each.bits <= 16], ids=str)
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_rounding_gives_a_neighbour_on_the_right_side(target: DTypeLike, mode: str) -> None:
    every = exact(patterns(target), target)
    numbers = np.unique(every[np.isfinite(every)])
    x = patterns(f64)
    x = x[(x > numbers[0]) & (x < numbers[-1])]
    below, above = numbers[np.searchsorted(numbers, x, "right") - 1], numbers[np.searchsorted(numbers, x, "left")]
    got = convert(x, f64, target, mode).astype(np.float64)
    if mode == "nearest_even":
        wanted = np.where(x - below < above - x, below, above)
        tie = x - below == above - x
        assert (got[~tie] == wanted[~tie]).all()
        assert ((got == below) | (got == above)).all()
    else:
        toward = {"positive_inf": above, "negative_inf": below, "zero": np.where(x > 0, below, above)}
        np.testing.assert_array_equal(got, toward[mode])


def test_saturation() -> None:
    x = np.array([np.inf, -np.inf, 1e30, -1e30, np.nan, -1.0, 0.0])
    expected: dict[DTypeLike, list[Any]] = {
        f8e4m3fn: [448, -448, 448, -448, np.nan, -1, 0],
        f8e5m2: [57344, -57344, 57344, -57344, np.nan, -1, 0],
        f4e2m1fn: [6, -6, 6, -6, 6, -1, 0],
        f8e8m0fnu: [2.0**127, np.nan, 2.0**100, np.nan, np.nan, np.nan, 2.0**-127],
        i8: [127, -128, 127, -128, 0, -1, 0],
        u16: [65535, 0, 65535, 0, 0, 0, 0],
        i64: [2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 0, -1, 0],
        bool_: [True, True, True, True, True, True, False],
    }
    for target, values in expected.items():
        with np.errstate(invalid="ignore"):
            got = convert(x, f64, target)
            if target is f8e8m0fnu:  # 1e30 is no power of two: the nearest one
                values[2] = float(got[2])
                assert abs(np.log2(float(got[2])) - np.log2(1e30)) < 0.6
            np.testing.assert_array_equal(got.astype(np.float64 if target.format else got.dtype), values)


BF16_ROUND_TRIP = [-3.5, -1, -0.0, 0, 0.125, 0.1, 1.1, 42]


@pytest.mark.parametrize("backend", BACKENDS)
def test_bf16_and_back(backend: str) -> None:
    x = np.resize(np.array(BF16_ROUND_TRIP, np.float32), TILE)
    text = "def trip(y: Mut, z: Tensor):\n    y.store(ct.load_tile_like(z, y).astype(ct.bf16).astype(ct.f32))\n"
    (got,) = run(backend, text, f32, (f32,), x)
    wanted = np.array([-3.5, -1, -0.0, 0, 0.125, 0.10009765625, 1.1015625, 42], np.float32)
    np.testing.assert_array_equal(got[:8], wanted)
    assert np.signbit(got[2])


# Bits

SAME_WIDTH = {
    8: (i8, u8, f8e4m3fn, f8e5m2, f8e8m0fnu, f4e2m1fnx2, f4e2m1fn),
    16: (u16, f16, bf16, i16),
    32: (f32, i32, u32, tf32),
    64: (f64, u64, i64),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", SAME_WIDTH)
def test_bitcast_keeps_every_bit_that_means_something(width: int, backend: str) -> None:
    dtypes = SAME_WIDTH[width]
    for source in dtypes:
        x = patterns(source) if source is not f4e2m1fnx2 else patterns(u8)
        names = [f"y{i}" for i in range(len(dtypes))]
        body = "".join(f"    {name}.store(ct.bitcast(x, {name}.dtype))\n" for name in names)
        head = f"def cast({', '.join(f'{n}: Mut' for n in names)}, z: Tensor):\n    x = ct.load_tile_like(z, y0)\n"
        carrier = _UNSIGNED[width // 8]
        for target, got in zip(dtypes, run(backend, head + body, source, dtypes, x), strict=True):
            mask = carrier(MEANING.get(source, (1 << width) - 1) if target is not source else (1 << width) - 1)
            like = source if source in (f16, bf16) else target  # one of their NaNs may become another
            wanted = (x.view(carrier) & mask).view(like.numpy)
            assert_same(got.view(like.numpy), wanted, x, like, f"{source} to {target}")


PACKED = [each for each in EVERY_DTYPE if each not in (bool_, f4e2m1fn, f4e2m1fnx2)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_pack_and_unpack_go_by_the_bytes_of_memory(dtype: DTypeLike, backend: str) -> None:
    x = np.random.default_rng(2).integers(0, 256, 4 * TILE, np.uint8)
    if dtype in MEANING:
        carrier = _UNSIGNED[dtype.bits // 8]
        x = (x.view(carrier) & carrier(MEANING[dtype])).view(np.uint8)
    size = dtype.bits // 8
    text = (
        "def packing(y: Mut, w: Mut, x: Tensor, z: Tensor):\n"
        "    i, _, _ = ct.get_tile_block_id()\n"
        f"    y.store(ct.pack(ct.load_tile(x, ({TILE // size},), (i,))))\n"
        f"    w.store(ct.unpack(ct.load_tile(z, ({TILE},), (i,)), w.dtype))\n"
    )
    with on(backend):
        y, w = api.empty(x.shape, u8).sync(), api.empty((x.size // size,), dtype).sync()
        arguments = tensor(x, u8).reinterpret(dtype, (x.size // size,)), tensor(x, u8)
        done = kernel(text)(y.partition((TILE,)), w.partition((TILE // size,)), *arguments).sync()
        packed = done.y.unpartition().to_numpy().sync().view(dtype.numpy)
        assert_same(packed, x.view(dtype.numpy), x, dtype, "pack")
        assert_same(done.w.unpartition().to_numpy().sync(), x.view(dtype.numpy), x, dtype, "unpack")


@pytest.mark.parametrize("backend", BACKENDS)
def test_pairs_of_4_bit_floats(backend: str) -> None:
    x = np.arange(256, dtype=np.uint8).reshape(16, 16)
    text = (
        "def pairs(y: Mut, w: Mut, x: Tensor):\n"
        "    t = ct.load_tile(x, (16, 16), (0, 0)).unpack((16, 32))\n"
        "    y.store(t.astype(ct.f32))\n"
        "    w.store(t.pack())\n"
    )
    with on(backend):
        y, w = api.empty((16, 32), f32).sync(), api.empty((16, 16), f4e2m1fnx2).sync()
        done = kernel(text)(y.partition((16, 32)), w.partition((16, 16)), tensor(x, f4e2m1fnx2)).sync()
        got, packed = done.y.unpartition().to_numpy().sync(), done.w.unpartition().to_numpy().sync()
    nibbles = np.stack([x & 15, x >> 4], axis=-1).reshape(16, 32)
    np.testing.assert_array_equal(got, nibbles.view(f4e2m1fn.numpy).astype(np.float32))
    np.testing.assert_array_equal(packed, x)


ABOVE_A_TIE = 1 + 2**-8 + 2**-40
"""Just above the middle of two bf16; the f32 next to it is the middle, which would be rounded to 1."""


@pytest.mark.parametrize("backend", [*BACKENDS, INTERPRET])
def test_numbers_in_a_kernel_are_rounded_once(backend: str) -> None:
    """Constants, paddings, scalar arguments and identities."""
    text = f"""
def numbers(y: Mut, z: Mut, w: Mut, v: Mut, x: Tensor, s: bf16):
    y.store(ct.constant({ABOVE_A_TIE}, (4,), ct.bf16))
    z.store(ct.gather(x, ct.iota((4,)), mask=ct.iota((4,)) > 9, padding_value={ABOVE_A_TIE}))
    w.store(ct.broadcast_scalar(s, (4,)))
    v.store(ct.select(ct.iota((4,)) > 1, ct.load_tile(x, (4,), (0,)), {ABOVE_A_TIE}))
"""
    with on_any(backend):
        outputs = [api.zeros((4,), bf16).sync() for _ in range(4)]
        x = api.zeros((4,), bf16).sync()
        done = kernel(text)(*(each.partition((4,)) for each in outputs), x, ABOVE_A_TIE).sync()
        y, z, w, v = (each.unpartition().to_numpy().sync().astype(np.float64).tolist() for each in done[:4])
    assert y == z == w == 4 * [1 + 2**-7]
    assert v == [1 + 2**-7, 1 + 2**-7, 0.0, 0.0]


def test_identities_are_rounded_once() -> None:
    """The reference backend begins with the identity; it is one of the maximum of lower numbers only in the test."""
    text = f"""
def largest(y: Mut, x: Tensor):
    y.store(ct.scan(x.load_tile((4,), (0,)), 0, ct.reverse.FORWARD, {ABOVE_A_TIE}, lambda a, b: max(a, b)))
"""
    with on("reference"):
        y, x = api.zeros((4,), bf16).sync(), api.zeros((4,), bf16).sync()
        done = kernel(text)(y.partition((4,)), x).first().unpartition().to_numpy().sync()
    assert done.astype(np.float64).tolist() == 4 * [1 + 2**-7]


def test_long_doubles_are_rounded_once() -> None:
    x = api.from_numpy(np.array([ABOVE_A_TIE, -ABOVE_A_TIE, np.inf], np.longdouble), bf16).to_numpy().sync()
    assert x.astype(np.float64).tolist() == [1 + 2**-7, -1 - 2**-7, np.inf]


def test_the_largest_number_that_fits_is_told_by_one_rounding() -> None:
    """From the middle between the largest bf16 and the next power of two on, numbers become infinite."""
    middle = bf16.max + 2.0**119
    assert fits(np.nextafter(middle, 0), bf16)  # the f32 next to it is the middle
    assert not fits(middle, bf16)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("ct.ftoi(x, ct.f16)", "ftoi: expected a type of integers, got f16"),
        ("ct.itof(x, ct.f16)", "itof: expected a tile of integers, got f32<4>"),
        ("ct.ftof(x, ct.f16, rounding=ct.rounding.APPROX)", "conversions round exactly, not APPROX"),
        ("ct.exti(x.astype(ct.i32), ct.i16)", "exti: i16 is not wider than i32"),
        ("ct.trunci(x.astype(ct.i32), ct.i64)", "trunci: i64 is not narrower than i32"),
        ("ct.bitcast(x, ct.f16)", "bitcast: f32 has 32 bits, f16 has 16"),
        ("ct.bitcast(x > 0, ct.u8)", "a bool has one bit"),
        ("ct.convert_scalar(x, ct.f16)", "convert_scalar: expected a scalar"),
        ("x.astype(ct.f4e2m1fnx2)", "f4e2m1fnx2 holds pairs"),
        ("ct.pack(x.reshape((2, 2)))", "pack: the tile must have one axis"),
        ("ct.pack(x, ct.u16)", "pack: expected u8 or i8 for bytes, got u16"),
        ("ct.unpack(x.astype(ct.u8))", "unpack: of bytes the dtype has to be said"),
        ("ct.unpack(x.astype(ct.u8), ct.f64)", "4 bytes are no whole number of f64"),
        ("ct.unpack(x, ct.f64)", "unpack: expected bytes"),
    ],
)
def test_what_does_not_fit_is_refused(expression: str, words: str) -> None:
    text = f"def wrong(y: Mut, z: Tensor):\n    x = ct.load_tile_like(z, y)\n    t = {expression}\n    y.store(x)\n"
    with pytest.raises(KernelTypeError) as caught, Device.host():
        kernel(text)(api.ones((4,), f32).sync().partition((4,)), api.ones((4,), f32).sync()).sync()
    assert words in str(caught.value)
