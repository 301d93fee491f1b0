"""Held rows: how they are copied to shared memory, and that no pass reads a slice before it is there."""

from __future__ import annotations

import pytest

from cutile.backend.cuda.long_rows import plan_row
from cutile.backend.cuda.ops import SliceWait, StageCommit, StageRead, StageTile
from cutile.backend.cuda.target import architecture
from cutile.backend.gpu.row_axis import row_axis
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import bf16
from cutile.ir import Block, Constant, For, Function, Op, Value
from cutile.ir.types import MutType
from tests.backend.cuda.programs import lowered, source, written
from tests.support.programs import tensor

ROW = tensor(2, bf16)
SOFTMAX = (
    "def softmax(y: Mut, x: Tensor):\n    t = ct.load_tile_like(x, y).astype(f32)\n"
    "    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])\n"
    "    y.store((e / ct.reduce_sum(e, 1)[:, None]).astype(y.dtype))\n"
)
SUMS = (
    "def norm(y: Mut, x: Tensor, w: Tensor):\n    t = ct.load_tile_like(x, y).astype(f32)\n"
    "    s = ct.rsqrt(ct.reduce_sum(t * t, 1){more})\n    w = ct.load_tile(w, (y.shape[1],), (0,)).astype(f32)\n"
    "    y.store((t * s[:, None] * w[None, :]).astype(y.dtype))\n"
)
"""A row beside which weights are loaded; `more` may need a further pass."""
FURTHER = " + ct.reduce_max(t - ct.reduce_sum(t, 1)[:, None], 1)"


def softmax_of(columns: int) -> Function:
    """A softmax of whole rows."""
    return written(SOFTMAX, {"y": MutType(ROW, (1, columns)), "x": ROW})


def with_weights(columns: int, more: str = "") -> Function:
    return written(SUMS.format(more=more), {"y": MutType(ROW, (1, columns)), "x": ROW, "w": tensor(1, bf16)})


def test_how_a_row_is_cut_and_copied_depends_on_what_is_loaded_beside_it() -> None:
    """Few passes, and few bytes beside the row, let two thread blocks share it; few bytes let bulk copies bring it."""

    def blocks(function: Function) -> int:
        row = row_axis(function)
        assert row is not None
        chosen = plan_row(function, row, architecture("sm_90a"), CompileOptions())
        assert chosen is not None
        return chosen.blocks

    def bulk(function: Function) -> set[bool]:
        return {op.copies > 0 for op in lowered(function).walk() if isinstance(op, StageTile)}

    assert [blocks(with_weights(32768, more)) for more in ("", FURTHER)] == [2, 1]
    assert bulk(with_weights(65536)) == {True}  # 64 KB in each of two thread blocks
    bias = (
        SUMS.format(more="")
        .replace("x: Tensor", "x: Tensor, b: Tensor")
        .replace("w[None, :])", "w[None, :] + ct.load_tile(b, (y.shape[1],), (0,)).astype(f32)[None, :])")
    )
    vector = tensor(1, bf16)
    assert bulk(written(bias, {"y": MutType(ROW, (1, 65536)), "x": ROW, "b": vector, "w": vector})) == {False}
    assert bulk(softmax_of(32768)) == {True}


@pytest.mark.parametrize("columns", [16384, 32768, 65536])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["softmax", "weights", "two rows"])
def test_no_slice_is_read_before_it_has_arrived(columns: int, arch: str, name: str) -> None:
    function = {"softmax": softmax_of, "weights": with_weights, "two rows": gradient_of}[name](columns)
    program = lowered(function, Target("cuda", arch))
    reads = slices_read(program)
    assert reads > 1 or not any(isinstance(op, StageTile) for op in program.walk())
    waits = [op for op in program.walk() if isinstance(op, SliceWait)]
    for wait in waits:  # each of them is needed
        with pytest.raises(AssertionError, match="is read before"):
            slices_read(program, without=wait)


def gradient_of(columns: int) -> Function:
    """The gradient of a softmax, of two rows of bf16."""
    text = (
        "def gradient(z: Mut, y: Tensor, dy: Tensor):\n"
        "    t, d = ct.load_tile_like(y, z).astype(f32), ct.load_tile_like(dy, z).astype(f32)\n"
        "    z.store((t * (d - ct.reduce_sum(t * d, 1)[:, None])).astype(z.dtype))\n"
    )
    return written(text, {"z": MutType(ROW, (1, columns)), "y": ROW, "dy": ROW})


def slices_read(program: Function, without: Op | None = None) -> int:
    """Run the copies and waits of a lowered kernel; return how many slices are read.

    Groups of `cp.async` are complete only as far as a wait says so, bulk copies where their barrier is waited for.
    """
    numbers: dict[Value, int] = {}
    group: set[tuple[int, int]] = set()  # stages whose copies belong to no group yet
    groups: list[set[tuple[int, int]]] = []
    complete: set[tuple[int, int]] = set()
    bulk: dict[int, tuple[int, int]] = {}  # by the place of its barriers, a row's first byte, and slices of a copy
    reads = 0

    def run(block: Block) -> None:
        nonlocal reads, group
        for op in block.operations:
            match op:
                case Constant() if isinstance(op.value, int):
                    numbers[op.result] = op.value
                case For():
                    for number in range(numbers[op.start], numbers[op.stop], numbers[op.step]):
                        numbers[op.body.arguments[0]] = number
                        run(op.body)
                case StageTile() if op.copies:
                    bulk[op.attributes["counter"]] = op.attributes["offset"], op.stage[1] // op.copies
                case StageTile():
                    group.add((op.attributes["offset"], numbers[op.iteration]))
                case StageCommit():
                    groups.append(group)
                    group = set()
                case SliceWait() if op is without:
                    pass
                case SliceWait() if op.bulk:
                    row, count = bulk[op.attributes["counter"]]
                    first = numbers[op.part] * count
                    complete.update((row, part) for part in range(first, first + count))
                case SliceWait():
                    for done in groups[: len(groups) - op.later[numbers[op.part]]]:
                        complete.update(done)
                case StageRead():
                    first, parts, nbytes = op.stage
                    place, size = op.attributes["offset"] + first, op.result.tile.size * op.dtype.bits // 8
                    own = range(numbers[op.iteration], parts) if size > nbytes else [numbers[op.iteration]]
                    for part in own:
                        assert (place, part) in complete, f"slice {part} of {op.of} is read before it is there"
                        reads += 1
                case _:
                    pass

    run(program.body)
    return reads


def test_sums_of_products_are_contracted_where_that_is_permitted() -> None:
    function = with_weights(32768)
    plan = source(function, fast_math=("contract",)).facts["plan"]
    assert ("fast math", "contracted multiply-adds: 1") in plan
    assert not [line for heading, line in plan if heading == "not used"]
    assert not [line for heading, line in source(function).facts["plan"] if heading == "fast math"]
