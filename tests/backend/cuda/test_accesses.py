"""Accesses by address, prints and assertions: their instructions and waits in machine code."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cutile import api
from cutile.backend.cuda.ops import Barrier
from cutile.dtypes import DTYPES, DTypeLike, bf16, f8e4m3fn, f16, f32, f64, i8, i32, u64
from cutile.frontend.build import build
from cutile.frontend.source import take_source
from cutile.ir.core import Function
from cutile.ir.types import MutType, TensorType, TileType, Type
from cutile.passes.pipeline import run_passes
from tests.backend.cuda.programs import compiled, disassembly, instructions, lowered, source
from tests.support.golden import Golden
from tests.support.kernels import define, kernel
from tests.support.programs import mut, scalar, tensor

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")


def unsafe_program(text: str, dtype: DTypeLike, **more: Type) -> Function:
    """A kernel with a pointer `p` to `dtype`."""
    function = define(text)
    types = {"p": TileType(u64), **more}
    made = build(function, take_source(function), types, {}, unsafe=True, pointers={"p": dtype})
    return run_passes(made.function)


def program(text: str, **types: Type) -> Function:
    """A kernel without pointers."""
    function = define(text)
    return run_passes(build(function, take_source(function), types, {}).function)


def instruction_counts(function: Function, folder: Path, arch: str = "sm_90a") -> Counter[str]:
    return instructions(compiled(function, arch), folder)


def total(counts: Counter[str], opcode: str, *parts: str) -> int:
    """How many instructions have this opcode, which may end in `*`, and these whole parts behind it."""
    prefix = opcode.removesuffix("*")
    return sum(
        count
        for name, count in counts.items()
        for first, *rest in [name.split(".")]
        if (first == opcode or (opcode != prefix and first.startswith(prefix))) and set(parts) <= {*rest}
    )


def test_instructions_are_counted_by_whole_parts() -> None:
    counts = Counter({"LDG.E.STRONG.SYS": 1, "STG.E.STRONG.SYS": 2, "REDUX.ADD": 4, "RED.E.ADD": 8, "LDGSTS.E": 16})
    assert total(counts, "STG", "STRONG", "SYS") == total(counts, "ST*", "STRONG") == 2
    assert (total(counts, "RED", "ADD"), total(counts, "LDG"), total(counts, "LDG", "STR")) == (8, 1, 0)


WITHOUT_AXES = TensorType(f32, (), (), 4)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tensors_without_axes_are_loaded_stored_and_updated(arch: str, tmp_path: Path) -> None:
    """One element, which is a scalar in the kernel; without spills."""
    text = (
        "def k(y: Mut, z: Mut, x: Tensor):\n"
        "    y.store(x.load_tile((), ()) * 2.0 + y.load())\n"
        "    ct.atomic_add(z, (), ct.gather(x, ()))\n"
    )
    own = MutType(WITHOUT_AXES, ())
    counts = instruction_counts(program(text, y=own, z=own, x=WITHOUT_AXES), tmp_path, arch)
    assert total(counts, "LDG") >= 2
    assert total(counts, "STG") >= 1
    assert total(counts, "RED*") + total(counts, "ATOM*") == 1
    assert total(counts, "STL") == 0


HISTOGRAM = """
def histogram(counts: Mut, x: Tensor):
    values = ct.load_tile(x, (1024,), (ct.get_tile_block_id()[0],))
    ct.atomic_add(counts, values, 1)
"""
GATHER = """
def gather(y: Mut, x: Tensor, index: Tensor):
    y.store(ct.gather(x, ct.load_tile_like(index, y)))
"""


def test_the_text_is_golden(golden: Golden) -> None:
    functions = {
        "histogram": program(HISTOGRAM, counts=mut(256, dtype=i32), x=tensor(1, i32)),
        "gather": program(GATHER, y=mut(1024), x=tensor(1), index=tensor(1, i32)),
    }
    for name, function in functions.items():
        golden(f"emit_cuda/{name}.py.txt", re.sub(r"<kernel \d+>", "<kernel>", source(function).text))


def test_an_update_that_nobody_asks_about_is_a_reduction(tmp_path: Path) -> None:
    seen = instruction_counts(program(HISTOGRAM, counts=mut(256, dtype=i32), x=tensor(1, i32)), tmp_path)
    assert total(seen, "RED*", "ADD") == 4  # 1024 lanes of 256 threads
    assert not total(seen, "ATOM*")
    assert not total(seen, "BAR", "SYNC")  # the kernel does nothing else to the tensor


def test_a_gather_from_what_nothing_writes_has_no_barrier(tmp_path: Path) -> None:
    function = program(GATHER, y=mut(1024), x=tensor(1), index=tensor(1, i32))
    seen = instruction_counts(function, tmp_path)
    assert total(seen, "LDG", "CONSTANT") >= 4  # `ld.global.nc`, since nothing writes x: 1024 elements by 256 threads
    assert not total(seen, "BAR", "SYNC")
    # A gather is by address, of which LLVM must not assume that it is no other tensor's.
    assert lowered(function).facts["noalias"] is False


BIAS = """
def biased(z: Mut, x: Tensor, y: Tensor, bias: Tensor):
    acc = ct.mma(x.load_tile((32, 32), (0, 0)), y.load_tile((32, 32), (0, 0)), ct.constant(0, (32, 32), ct.f32))
    rows, columns = ct.iota((32,)), ct.iota((32,))
    z.store(acc + ct.gather(bias, (rows[:, None], columns[None, :])).astype(ct.f32))
"""


@pytest.mark.parametrize("dtype", [i8, f8e4m3fn], ids=str)
def test_bytes_are_gathered_by_pairs_in_the_layout_of_an_accumulator(dtype: DTypeLike, tmp_path: Path) -> None:
    """Where a thread has pairs of columns: one access has two bytes, which are no whole word."""
    half = tensor(2, f16)
    function = program(BIAS, z=mut(32, 32), x=half, y=half, bias=tensor(2, dtype))
    assert "width=2" in source(function).text
    assert total(instruction_counts(function, tmp_path), "LDG", "U16") >= 16  # of 1024 bytes by 32 threads


SCALE = """
def scale(p: ct.Ptr[f32], a: f32, n: i32):
    lanes = ct.iota((1024,)) + 1024 * ct.get_tile_block_id()[0]
    value, token = ct.load_ptr_tko(p.offset(lanes), mask=lanes < n)
    ct.store_ptr_tko(p.offset(lanes), a * value, mask=lanes < n{token})
"""


@pytest.mark.parametrize(("token", "barriers"), [("", 0), (", token=token", 1)])
def test_a_token_has_a_barrier(token: str, barriers: int, tmp_path: Path) -> None:
    made = unsafe_program(SCALE.format(token=token), f32, a=scalar(), n=scalar(i32))
    seen = instruction_counts(made, tmp_path)
    assert (total(seen, "LDG"), total(seen, "STG"), total(seen, "BAR", "SYNC")) == (4, 4, barriers)
    assert not total(seen, "*", "CONSTANT")


UPDATE = """
    wide, _ = ct.atomic_rmw_tko(p.offset(ct.iota((100,))), value, ct.atomic.{mode}, mask=ct.iota((100,)) > 3)
    few, _ = ct.atomic_rmw_tko(p.offset(ct.iota((8,))), one, ct.atomic.{mode}, ct.ordering.ACQ_REL)
    ct.atomic_rmw_tko(p, one, ct.atomic.{mode}, ct.ordering.RELEASE, ct.scope.SYSTEM)
    total = total + wide + ct.reduce_max(few, 0)
"""
SWAP = """
    before, _ = ct.atomic_cas_tko(p.offset(ct.iota((100,))), value, total, ct.ordering.ACQUIRE)
    total = total + before
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [i32, u64, f16, bf16, f32, f64], ids=str)
def test_every_update_of_a_dtype_compiles_clean(dtype: DTypeLike, arch: str) -> None:
    """In tiles of 100 and of 8 elements, which fewer threads hold than there are, and as a scalar."""
    ints = ("ADD", "AND", "OR", "XOR", "MAX", "MIN", "UMAX", "UMIN")
    modes = [*(("ADDF",) if dtype.kind == "float" else ints), *(("XCHG",) if dtype.bits >= 32 else ())]
    text = "def k(p: ct.Ptr, x: Tensor, old: Mut):\n    value = ct.load_tile(x, (100,), (0,))\n"
    text += "    one = ct.reduce_max(value, 0)\n    total = value"
    text += "".join(UPDATE.format(mode=mode) for mode in modes) + (SWAP if dtype.bits >= 32 else "")
    made = unsafe_program(text + "    old.store(total)\n", dtype, x=tensor(1, dtype), old=mut(100, dtype=dtype))
    facts = compiled(made, arch).facts
    assert (facts["spills"], facts["stack"], facts["remarks"]) == (0, 0, ())


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_loads_and_stores_of_every_dtype_compile_clean(arch: str) -> None:
    text = (
        "def k(p: ct.Ptr):\n"
        "    q = p.offset(ct.iota((48,)) * 3)\n"
        "    value, token = ct.load_ptr_tko(q, ct.ordering.ACQUIRE, ct.scope.SYSTEM)\n"
        "    ct.store_ptr_tko(q.offset(1), value, ct.ordering.RELEASE, ct.scope.TILE_BLOCK, token=token)\n"
        "    p.store(p.offset(2).load())\n"
    )
    for dtype in DTYPES:
        if dtype.kind in ("bool", "int", "uint", "float"):
            facts = compiled(unsafe_program(text, dtype), arch).facts
            assert (facts["spills"], facts["stack"], facts["remarks"]) == (0, 0, ()), dtype


def test_scopes_and_orders_reach_the_machine(tmp_path: Path) -> None:
    text = (
        "def k(p: ct.Ptr[i32]):\n"
        "    lanes = ct.iota((32,))\n"
        "    ct.store_ptr_tko(p.offset(lanes), 1, ct.ordering.RELEASE, ct.scope.SYSTEM)\n"
        "    seen, _ = ct.load_ptr_tko(p.offset(lanes + 32), ct.ordering.ACQUIRE, ct.scope.DEVICE)\n"
        "    ct.atomic_rmw_tko(p.offset(seen), 1, ct.atomic.ADD, ct.ordering.RELAXED, ct.scope.TILE_BLOCK)\n"
    )
    seen = instruction_counts(unsafe_program(text, i32), tmp_path)
    assert total(seen, "MEMBAR", "SYS") == 1
    assert total(seen, "STG", "STRONG", "SYS") == 1
    assert total(seen, "LDG", "STRONG", "GPU") == 1
    assert total(seen, "RED*", "ADD") + total(seen, "ATOM*", "ADD") == 1
    assert total(seen, "BAR", "SYNC") == 2  # before the release, after the acquire; a relaxed update needs none


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_ordered_accesses_of_tiles_reach_the_machine(arch: str, tmp_path: Path) -> None:
    text = (
        "def k(y: Mut, x: Tensor):\n"
        "    tile = ct.load_view_tko(x.partition((256,)), 0, ct.ordering.ACQUIRE, ct.scope.SYSTEM)\n"
        "    ct.store_view_tko(y.partition_mut((256,)), tile, 0, ct.ordering.RELEASE)\n"
    )
    function = program(text, y=mut(256), x=tensor(1))
    seen = instruction_counts(function, tmp_path, arch)
    stores = total(seen, "STG", "STRONG", "GPU")
    assert total(seen, "LDG", "STRONG", "SYS") == stores > 1  # each thread has several elements
    assert total(seen, "MEMBAR", "GPU") == total(seen, "MEMBAR", "SYS") == 1  # for all elements of a thread
    assert total(seen, "LDG") == total(seen, "LDG", "STRONG", "SYS")  # and no other
    assert compiled(function, arch).facts["spills"] == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("order", "fences"), [("RELAXED", 0), ("RELEASE", 1), ("ACQ_REL", 1)])
def test_updates_of_a_tile_are_released_by_one_fence(order: str, fences: int, arch: str, tmp_path: Path) -> None:
    text = "def k(p: ct.Ptr[i32]):\n    lanes = p.offset(ct.iota((256,)))\n"
    for number, update in enumerate(("atomic_rmw_tko(lanes, 7, ct.atomic.ADD,", "atomic_cas_tko(lanes, 0, 1,")):
        whole = (
            f"    seen, _ = ct.{update} ct.ordering.{order}, ct.scope.DEVICE)\n    p.store(ct.reduce_sum(seen, 0))\n"
        )
        folder = tmp_path / str(number)
        folder.mkdir()
        seen = instruction_counts(unsafe_program(text + whole, i32), folder, arch)
        assert total(seen, "MEMBAR", "GPU") == fences, update
        assert total(seen, "ATOM*") > 1


SPEAK = """
def k(y: Mut, n: i32):
    print("block", ct.get_tile_block_id()[0], y.load(), f"{n:5d}% {y.load() > 0.5}")
    assert n > 0, "n must be positive"
    y.store(y.load() + 1.0)
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=str)
def test_prints_and_assertions_compile(dtype: DTypeLike, arch: str) -> None:
    executable = compiled(program(SPEAK, y=mut(4, 20, dtype=dtype), n=scalar(i32)), arch)
    assert executable.facts["spills"] == 0
    assert b"vprintf" in executable.image
    assert b"__assertfail" not in executable.image
    (place,) = executable.facts["failures"]
    assert place[0] == "n must be positive"


PRODUCT = """
def gemm(z: Mut, x: Tensor, y: Tensor):
    part_x, part_y = x.partition((128, 64)), y.partition((64, 128))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (128, 128), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        {extra}
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.mark.parametrize("extra", ["print(k)", "ct.atomic_add(z, (k, 0), 1.0)"])
def test_a_product_beside_prints_or_updates_is_not_warp_specialised(extra: str) -> None:
    types: dict[str, Type] = {
        "z": mut(128, 128, dtype=bf16),
        "x": tensor(2, bf16),
        "y": tensor(2, bf16),
    }
    plain, other = (lowered(program(PRODUCT.format(extra=each), **types)) for each in ("pass", extra))
    assert any(op.name == "cuda.roles" for op in plain.walk())
    assert not any(op.name == "cuda.roles" for op in other.walk())
    assert compiled(program(PRODUCT.format(extra=extra), **types)).facts["spills"] == 0


INSIDE = """
def layer_norm(y: Mut, x: Tensor):
    part, row = x.partition(y.shape), (ct.get_tile_block_id()[0], 0)
    n = ct.get_tensor_shape(x)[1]
    t = part.load(row)
    centred = ct.select(part.inside(row) & y.inside(), t - (ct.reduce_sum(t, 1) / n)[:, None], 0.0)
    y.store(centred * ct.rsqrt(ct.reduce_sum(centred * centred, 1) / n + 1e-5)[:, None])
"""


ROWS = (
    "def rows(y: ct.SharedMut, x: Tensor, index: Tensor):\n"
    "    chosen = ct.load_tile(index, (64,), (ct.get_tile_block_id()[0],))\n"
    "    tile = ct.load_tile(x, (64, 32), (ct.get_tile_block_id()[0], 0))\n"
    "    ct.atomic_add(y, (chosen[:, None], ct.iota((32,))[None, :]), tile)\n"
)


@pytest.mark.parametrize(("dtype", "arch", "updates"), [
    (f32, "sm_80", 0), (f32, "sm_90a", 2), (f32, "sm_100a", 2), (f16, "sm_90a", 1), (bf16, "sm_90a", 1),
])  # fmt: skip
def test_rows_are_added_in_wide_updates(dtype: DTypeLike, arch: str, updates: int, tmp_path: Path) -> None:
    """16 bytes each, of prefetched lines, without spills; none where the architecture has no such updates."""
    y = replace(tensor(2, dtype), stable=False)
    executable = compiled(program(ROWS, y=y, x=tensor(2, dtype), index=tensor(1, i32)), arch)
    lines = disassembly(executable, tmp_path).splitlines()
    wide = f".ADD.{dtype.name.upper()}x{128 // dtype.bits}."
    assert sum("RED" in line and wide in line for line in lines) == updates
    assert sum("CCTL.E.PF2" in line for line in lines) == updates
    assert (executable.facts["spills"], executable.facts["stack"]) == (0, 0)


def test_loads_of_a_tensor_that_is_gathered_from_have_no_barrier() -> None:
    """Nothing writes `x`: no barrier keeps its loads apart."""
    text = (
        "def k(y: Mut, x: Tensor):\n"
        "    t = ct.load_tile_like(x, y) + ct.load_tile(x, y.shape, (1,))\n"
        "    y.store(t + ct.gather(x, ct.iota(y.shape)))\n"
    )
    operations = list(lowered(program(text, y=mut(64), x=tensor(1))).walk())
    assert not any(isinstance(op, Barrier) for op in operations)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_mask_of_what_lies_inside_costs_no_memory(arch: str) -> None:
    op = kernel(INSIDE)(api.meta((500, 100)).partition((2, 128)), api.meta((500, 100)))
    log = op.render("log", arch)
    assert "0 bytes stack frame, 0 bytes spill stores" in log
