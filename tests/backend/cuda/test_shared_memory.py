"""What shares a place in shared memory, and what gives way where it does not suffice."""

from __future__ import annotations

from typing import Any

import pytest

from cutile.backend.cuda.ops import Barrier, Pipeline, StagedMma, StageTile
from cutile.backend.cuda.target import architecture
from cutile.backend.gpu.smem_allocator import SmemAllocator
from cutile.backend.interface import Target
from cutile.dtypes import bf16, i32
from cutile.ir.core import Function
from cutile.ir.types import Type
from tests.backend.cuda.programs import compiled, lowered, written
from tests.support.programs import mut, scalar, tensor

PRODUCT = """
def f(z: Mut, w: Mut, x: Tensor, y: Tensor, u: Tensor, v: Tensor, n: i32):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), ct.f32)
    for k in range(n):
        a, b = ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k, j))
        acc = ct.mma(a, b, acc)
{after}"""
SECOND = """    for k in range(n):
        a, b = ct.load_tile(u, (BM, 64), (i, k)), ct.load_tile(v, (64, BN), (k, j))
        acc = ct.mma(a, b, acc)
"""
STORED = "    z.store(ct.convert_tile(acc, z.dtype))\n"
AFTER = {
    "extract": "    w.store(ct.convert_tile(ct.extract(acc, (0, 0), w.shape), w.dtype))\n",
    "scan": "    z.store(ct.convert_tile(ct.scan_sum(acc, 1), z.dtype))\n",
    "halves": "    part = z.partition_mut((BM, BN // 2))\n"
    "    for h in ct.static_range(2):\n"
    "        part.store(ct.convert_tile(ct.extract(acc, (0, h), (BM, BN // 2)), z.dtype), (0, h))\n",
    "second loop": SECOND + STORED,
    "second loop and scan": SECOND + "    z.store(ct.convert_tile(ct.scan_sum(acc, 1), z.dtype))\n",
}
TILES: dict[str, list[tuple[tuple[int, int], dict[str, Any]]]] = {
    "sm_90a": [((192, 160), {}), ((128, 192), {"num_worker_warps": 4}), ((128, 256), {}), ((128, 128), {})],
    "sm_80": [((128, 256), {}), ((128, 128), {})],
    "sm_100a": [((128, 256), {})],
    "sm_120a": [((128, 128), {})],
}
CASES = [
    pytest.param(arch, tile, options, after, id=f"{arch} {tile} {after}")
    for arch, cases in TILES.items()
    for tile, options in cases
    for after in AFTER
]


def product(tile: tuple[int, int], after: str) -> Function:
    """A product and what follows it."""
    x = tensor(2, bf16)
    half = mut(tile[0] // 2, tile[1] // 2, dtype=bf16)
    types: dict[str, Type] = {"z": mut(*tile, dtype=bf16), "w": half, "x": x, "y": x, "u": x, "v": x, "n": scalar(i32)}
    return written(PRODUCT.format(after=AFTER[after]), types)


@pytest.mark.parametrize(("arch", "tile", "options", "after"), CASES)
def test_what_follows_a_product_finds_room(
    arch: str, tile: tuple[int, int], options: dict[str, Any], after: str
) -> None:
    made = lowered(product(tile, after), Target("cuda", arch), **options)
    assert made.facts["shared_bytes"] <= architecture(arch).shared_bytes


def test_two_loops_one_after_the_other_share_a_place() -> None:
    first, second = (
        lowered(product((128, 128), name), Target("cuda", "sm_80")) for name in ("scan", "second loop and scan")
    )
    assert first.facts["shared_bytes"] == second.facts["shared_bytes"]
    staged = [op for op in second.walk() if isinstance(op, StagedMma)]
    assert len(staged) == 2
    assert {op.attributes["offset"] for op in staged} == {0}
    operations = second.body.operations
    (last,) = [at for at, op in enumerate(operations) if staged[0] in list(_inside(op))]
    stages = [any(isinstance(each, StageTile) for each in (op, *_inside(op))) for op in operations]
    following = stages.index(True, last + 1)
    assert any(isinstance(op, Barrier) for op in operations[last:following])  # else a warp may still read the first


def test_what_comes_behind_a_ring_waits_for_it() -> None:
    made = lowered(product((128, 128), "scan"), Target("cuda", "sm_80"))
    (scan,) = (op for op in made.walk() if op.name.startswith("scan"))
    assert scan.attributes["offset"] < 1024
    assert scan.attributes["fence"]


def _inside(op: Any) -> Any:
    return (each for block in op.regions for each in block.walk())


def test_the_arena_overlaps_what_does_not_live_together() -> None:
    arena, ops = SmemAllocator(), [Barrier() for _ in range(5)]
    arena.use(ops[0], 3000, looped=False)
    first, used = arena.begin(10_000)
    arena.share(ops[1], first)
    arena.use(ops[2], 4000, looped=True)
    arena.end()
    assert used
    second, used = arena.begin(5000)
    arena.share(ops[3], second)
    arena.end()
    assert used
    arena.use(ops[4], 9000, looped=False)
    arena.place()
    assert [op.attributes["offset"] for op in ops] == [0, 0, 10_112, 0, 0]
    assert [ops[i].attributes["fence"] for i in (0, 2, 4)] == [False, True, True]
    assert arena.bytes == 10_112 + 4096


def test_a_ring_gives_up_slots_before_it_is_given_up() -> None:
    """What stands in its loop needs a place beside it."""
    halves = "acc = ct.cat(ct.extract(acc, (1, 0), (BM // 2, BN)), ct.extract(acc, (0, 0), (BM // 2, BN)), 0)\n"
    exchanged = PRODUCT.replace("acc = ct.mma(a, b, acc)\n", "acc = ct.mma(a, b, acc)\n        " + halves)
    x, slots = tensor(2, bf16), dict[str, set[int]]()
    types: dict[str, Type] = {"w": mut(64, 64), "x": x, "y": x, "u": x, "v": x, "n": scalar(i32)}
    for arch, rows in (("sm_90a", 192), ("sm_80", 128), ("sm_120a", 128)):
        function = written(exchanged.format(after=STORED), {"z": mut(rows, 128, dtype=bf16)} | types)
        lowering = lowered(function, Target("cuda", arch))
        assert lowering.facts["shared_bytes"] <= architecture(arch).shared_bytes
        slots[arch] = {op.stage[1] for op in lowering.walk() if isinstance(op, StageTile)}
        slots[arch] |= {op.stages for op in lowering.walk() if isinstance(op, Pipeline)}
    assert slots == {"sm_90a": {2}, "sm_80": {2}, "sm_120a": set()}


@pytest.mark.slow
def test_it_compiles() -> None:
    made = compiled(product((128, 128), "second loop and scan"), "sm_80")
    assert made.facts["spills"] == 0
