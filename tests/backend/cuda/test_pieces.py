"""Targets, shared memory's plan, what a product stages, the linker's log."""

from __future__ import annotations

import pytest

from cutile.backend.cuda.backend import BACKEND
from cutile.backend.cuda.mma_layouts import mma_accumulator
from cutile.backend.cuda.ops import Barrier
from cutile.backend.cuda.smem_sizes import product_bytes, reduce_bytes, stages
from cutile.backend.cuda.target import architecture, for_capability
from cutile.backend.cuda.toolchain import compile_ir, link, read_log
from cutile.backend.gpu.layout import batched, blocked, outer_accumulator
from cutile.backend.gpu.smem_allocator import SmemAllocator
from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i8, tf32
from cutile.errors import CompilationError, UnsupportedTargetError
from cutile.ir.core import Op


def test_architectures_by_name() -> None:
    hopper = architecture("sm_90a")
    assert (hopper.name, hopper.capability, hopper.shared_bytes) == ("sm_90a", (9, 0, "a"), 232448)
    assert architecture("sm_80").capability == (8, 0)
    assert architecture("sm_120a").capability == (12, 0, "a")
    assert for_capability(8, 9) == "sm_89"


@pytest.mark.parametrize(("reported", "chosen"), [("sm_90", "sm_90a"), ("sm_80", "sm_80"), ("sm_100a", "sm_100a")])
def test_a_device_gets_its_own_instructions(reported: str, chosen: str) -> None:
    target = BACKEND.target(reported, 132)
    assert (target.backend, target.arch, target.units) == ("cuda", chosen, 132)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sm_75", "too old: kernels need sm_80"),
        ("gfx90a", "no CUDA architecture"),
        ("sm_91", "there is no sm_91; expected"),
    ],
)
def test_other_architectures_are_refused(name: str, message: str) -> None:
    with pytest.raises(UnsupportedTargetError, match=message):
        architecture(name)


def test_small_uses_have_places_of_their_own_and_large_ones_share() -> None:
    arena, ops = SmemAllocator(), [Barrier() for _ in range(5)]
    for op, size, looped in zip(ops, (100, 5000, 300, 9000, 0), (False, False, True, False, True), strict=True):
        arena.use(op, size, looped)
    arena.place()
    assert [facts(op) for op in ops] == [(9088, False), (0, False), (9216, True), (0, True), (9600, False)]
    assert arena.bytes == 9088 + 128 + 384


def test_a_reserved_place_is_shared_by_those_it_is_handed_to() -> None:
    arena, (first, second, other) = SmemAllocator(), (Barrier(), Barrier(), Barrier())
    place = arena.reserve(1000)
    arena.share(first, place)
    arena.use(other, 3000, looped=False)
    arena.share(second, place)
    arena.place()
    assert first.attributes["offset"] == second.attributes["offset"] == 0
    assert other.attributes["offset"] == 1024
    assert arena.bytes == 3072 + 1024


def facts(op: Op) -> tuple[int, bool]:
    return op.attributes["offset"], op.attributes["fence"]


def test_a_staged_row_is_an_odd_number_of_16_byte_units() -> None:
    left, right = stages(f16, mma_accumulator((128, 128), 8), 64)
    assert (left.rows, left.columns, left.pitch) == (128, 64, 72)
    assert (right.rows, right.columns, right.pitch) == (64, 128, 136)
    assert right.offset == left.bytes == 128 * 72 * 2
    assert product_bytes(f16, mma_accumulator((128, 128), 8), 64) == 128 * 72 * 2 + 64 * 136 * 2


def test_the_depth_of_a_tensor_core_product_is_whole_steps() -> None:
    left, right = stages(bf16, mma_accumulator((96, 80), 4), 24)
    assert (left.columns, right.rows) == (32, 32)


@pytest.mark.parametrize(
    ("dtype", "depth", "swaps"),
    [(f16, 16, (False, False)), (i8, 32, (False, True)), (tf32, 8, (False, False)), (f64, 4, (False, False))],
)
def test_what_ldmatrix_cannot_transpose_lies_along_k(dtype: DTypeLike, depth: int, swaps: tuple[bool, bool]) -> None:
    left, right = stages(dtype, mma_accumulator((64, 80), 4), 1)
    assert (left.swap, right.swap) == swaps
    assert (left.rows, left.columns) == (64, depth)
    assert (right.rows, right.columns) == ((80, depth) if right.swap else (depth, 80))


def test_four_rows_of_f64_meet_no_bank_twice() -> None:
    for stage in stages(f64, mma_accumulator((64, 80), 4), 20):
        banks = {
            (2 * (row * stage.pitch + column) + word) % 32 for row in range(4) for column in range(4) for word in (0, 1)
        }
        assert len(banks) == 32


@pytest.mark.parametrize("shape", [(128, 128), (128, 256), (64, 64), (96, 80), (48, 56), (8, 8), (1, 200), (200, 1)])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_registers_of_outer_products_are_in_the_order_of_their_loops(shape: tuple[int, int], warps: int) -> None:
    """Rows of cores, columns of cores, rows of a lane, and its neighbours in a row."""
    layout = outer_accumulator(shape, warps)
    width = layout.vector(1)
    rows = list(dict.fromkeys(each[0] for each in layout.offsets[: 1 << len(layout.register)]))
    cores = [[layout.core[axis] * i for i in range(dict(layout.repeat).get(axis, 1))] for axis in (0, 1)]
    wanted = [(m + r, n + c) for m in cores[0] for n in cores[1] for r in rows for c in range(width)]
    assert list(layout.offsets) == wanted


def test_a_batch_stages_all_of_its_operands() -> None:
    one = outer_accumulator((32, 32), 2)
    assert product_bytes(f32, batched(one, 3), 16) == 3 * product_bytes(f32, one, 16)


def test_a_reduction_within_warps_needs_no_shared_memory() -> None:
    rows = blocked((8, 128), warps=8, vector=4)
    assert reduce_bytes(f32, rows, 1) == 0
    assert reduce_bytes(f32, rows, 0) == 4 * 8 * 32 * 4
    assert reduce_bytes(f32, blocked((4096,), 8, 4), 0) == 8 * 4


def test_the_linkers_log_is_read() -> None:
    log = """
    ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
    ptxas         .     24 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads
    ptxas info    : Used 168 registers, used 16 barriers
    """
    report = read_log(log)
    assert (report.registers, report.stack, report.spills) == (168, 24, 24)
    assert len(report.remarks) == 1


def test_what_nvvm_and_the_linker_say_is_in_the_error() -> None:
    hopper = architecture("sm_90a")
    with pytest.raises(CompilationError, match=r"NVVM: .*expected"):
        compile_ir(["define void @k() { this is no instruction }"], hopper)
    with pytest.raises(CompilationError, match="nvJitLink"):
        link(b"no LTO-IR", hopper)
