"""Pipelines whose loads stand where numbers say: from memory, in any control flow, under assertions."""

from __future__ import annotations

from typing import Any

import pytest

from cutile import bf16
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import (
    Failed,
    FailUnless,
    GridDependencyWait,
    Pipeline,
    PipelineAcquire,
    PipelineRelease,
    Roles,
    TmaLoad,
    TmaStore,
)
from cutile.backend.cuda.ops.pipeline import PipelineType
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.rules import plan
from cutile.backend.cuda.target import Refused, architecture
from cutile.backend.interface import CompileOptions
from cutile.dtypes import i32, u8
from cutile.ir.control import For, While
from cutile.ir.core import Block, Function, Op
from cutile.ir.types import MutType, TensorType, Type
from cutile.ir.verify import verify
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from tests.backend.cuda.programs import compiled, instructions, lowered, written
from tests.support.programs import mut, scalar, tensor

HEAD = """
def kernel(z: Mut, x: Tensor, w: Tensor, {more}):
    BM, BN = z.shape
    px, pw = x.partition((BM, 64)), w.partition((1, 64, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
"""
STEP = (
    "acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), "
    "ct.load_tile(w, (1, 64, BN), ({e}, k, j)).reshape((64, BN)), acc)\n"
)
STEPS = "    for k in range(ct.num_tiles(px, 1)):\n        " + STEP
TAIL = "    z.store(ct.convert_tile(acc, z.dtype))\n"
NUMBER = "    e = ct.load_tile(table, (1,), (i,)).reshape(())\n"
LIST = tensor(1, i32)

KERNELS: dict[str, tuple[str, Type]] = {
    "a number from memory": (HEAD + NUMBER + STEPS.format(e="e") + TAIL, LIST),
    "an element": (HEAD + "    e = ct.gather(table, i)\n" + STEPS.format(e="e") + TAIL, LIST),
    "a table": (
        HEAD
        + "    for k in range(ct.num_tiles(px, 1)):\n"
        + "        e = ct.load_tile(table, (1,), (k,)).reshape(())\n        "
        + STEP.format(e="e")
        + TAIL,
        LIST,
    ),
    "a bound from memory": (HEAD + NUMBER + "    for k in range(e):\n        " + STEP.format(e="0") + TAIL, LIST),
    "a mask": (
        HEAD
        + "    for k in range(ct.num_tiles(px, 1)):\n"
        + "        if ct.load_tile(table, (1,), (k,)).reshape(()) != 0:\n            "
        + STEP.format(e="0")
        + TAIL,
        tensor(1, u8),
    ),
    "while": (
        HEAD + "    k = 0\n    while k < table:\n        " + STEP.format(e="0") + "        k += 2\n" + TAIL,
        scalar(i32),
    ),
    "a number that is carried": (
        HEAD
        + "    e = 0\n    for k in range(ct.num_tiles(px, 1)):\n        "
        + STEP.format(e="e")
        + "        e = (e + 1) % table\n"
        + TAIL,
        scalar(i32),
    ),
    "a number of a branch": (
        HEAD + "    e = 0\n    if table > i:\n        e = table - i\n" + STEPS.format(e="e") + TAIL,
        scalar(i32),
    ),
    "a check that stays": (
        HEAD
        + NUMBER
        + "    for k in range(ct.num_tiles(px, 1)):\n"
        + "        acc = ct.mma(px.load((i, k)), pw.load((e, k, j)).reshape((64, BN)), acc)\n"
        + TAIL,
        LIST,
    ),
    "an assertion behind the loop": (
        HEAD + NUMBER + STEPS.format(e="e") + "    assert e > i, 'too far down'\n" + TAIL,
        LIST,
    ),
}
"""Kernels, and what their `table` is."""
CHECKED = ("a check that stays", "an assertion behind the loop")


def program(name: str, columns: int = 256) -> Function:
    text, table = KERNELS[name]
    more = "table: Tensor" if isinstance(table, TensorType) else "table: i32"
    given: dict[str, Type] = {"z": mut(128, columns, dtype=bf16), "x": tensor(2, bf16), "w": tensor(3, bf16)}
    return written(text.format(more=more), {**given, "table": table})


STREAM = """
def stream(z: ct.MappedPartitionMut, x: Tensor, w: Tensor):
    BM, BN = z.shape
    px, pw = x.partition((BM, 64)), w.partition((64, BN))
    for index in z.iter_indices():
        i, j = index.coords()
        acc = ct.constant(0, (BM, BN), f32)
        for k in range(ct.num_tiles(px, 1)):
            acc = ct.mma(px.load((i, k)), pw.load((k, j)), acc)
        z.store(ct.convert_tile(acc, z.dtype), index)
"""


def stream() -> Function:
    """A persistent loop of the user's own."""
    operand = tensor(2, bf16)
    return written(STREAM, {"z": MutType(operand, (128, 256), map=(8, 1)), "x": operand, "w": operand})


@pytest.mark.parametrize("name", KERNELS)
def test_both_roles_find_the_numbers(name: str) -> None:
    function = lowered(program(name))
    verify(function)
    assert [step for step, _ in function.facts["refused"]] == ["specialised warps"]
    assert not any(isinstance(op, Mma) for op in function.walk())
    assert check_function(function) > 10
    check_layouts(function)
    asserted = [op for op in function.walk() if isinstance(op, FailUnless)]
    assert bool(asserted) == (name in CHECKED)


def test_bounds_of_many_steps_are_looked_at_once() -> None:
    """Each number is both operands of the next: one look for each use would be 2**60."""
    bounds = "    m = i + 1\n" + "    m = m + m\n" * 60 + "    for k in range(m % 64):\n        "
    text = HEAD.format(more="e: i32") + bounds + STEP.format(e="e") + TAIL
    function = written(
        text, {"z": mut(128, 256, dtype=bf16), "x": tensor(2, bf16), "w": tensor(3, bf16), "e": scalar(i32)}
    )
    order = plan(Kernel(function), architecture("sm_90a"), CompileOptions()).tiles.order
    assert order.taken
    assert not order.backwards


def test_a_persistent_loop_of_the_users_own_is_pipelined() -> None:
    function = lowered(stream())
    assert [step for step, _ in function.facts["refused"]] == ["specialised warps"]
    assert check_function(function) > 10


def test_the_producer_runs_no_tiles() -> None:
    (roles,) = (op for op in lowered(program("a table")).walk() if isinstance(op, Roles))
    loads = [op for op in roles.producer.walk() if isinstance(op, LoadTile)]
    assert [op.result.tile.size for op in loads] == [1]
    assert not any(isinstance(op, LoadTile) for op in roles.consumer.walk())  # which have no use for the number


def test_memory_is_read_behind_the_kernel_ahead_and_by_plain_loads() -> None:
    """A kernel begins before the one ahead of it has ended, which may still be writing the table."""
    function = lowered(program("a number from memory"))
    operations = list(function.walk())
    follows = next(place for place, op in enumerate(operations) if isinstance(op, GridDependencyWait))
    loads = [place for place, op in enumerate(operations) if isinstance(op, LoadTile)]
    assert loads
    assert min(loads) > follows
    assert not any(operations[place].attributes["constant"] for place in loads)


def test_a_loop_that_looks_up_its_tiles_only_multiplies() -> None:
    """Its products go on while the next number is read: nothing is waited for but the iteration before."""
    (roles,) = (op for op in lowered(program("a table")).walk() if isinstance(op, Roles))
    inner = [op for op in roles.consumer.walk() if isinstance(op, For)][-1]
    names = [op.name for op in inner.body.operations]
    assert names.count("cuda.dot") == names.count("cuda.dot_wait") == 1


def test_while_carries_the_stages() -> None:
    (roles,) = (op for op in lowered(program("while")).walk() if isinstance(op, Roles))
    for side, carried in ((roles.producer, 2), (roles.consumer, 3)):  # a number and a counter; sums besides
        loop = [op for op in side.walk() if isinstance(op, While)][-1]  # in that of tile blocks
        assert len(loop.carried) == carried


WRITTEN = """
def written(z: Mut, x: Tensor, w: Tensor, u: Mut):
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    e = u.load().reshape(())
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(e):
        acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(w, (64, BN), (k, j)), acc)
    u.store(ct.constant(0, (1, 1), i32))
    z.store(ct.convert_tile(acc, z.dtype))
"""


def test_a_number_that_the_kernel_writes_is_refused() -> None:
    operand = tensor(2, bf16)
    given: dict[str, Type] = {"z": mut(128, 256, dtype=bf16), "x": operand, "w": operand, "u": mut(1, 1, dtype=i32)}
    with pytest.raises(Refused, match="an index of a load, or an assertion, depends on more than numbers: load_mut"):
        plan(Kernel(written(WRITTEN, given)), architecture("sm_90a"), CompileOptions())


# Assertions: the producer makes them, and stores wait for its verdict.


@pytest.mark.parametrize("name", CHECKED)
def test_stores_wait_for_what_was_asserted_before(name: str) -> None:
    (roles,) = (op for op in lowered(program(name)).walk() if isinstance(op, Roles))
    assert not any(isinstance(op, FailUnless) for op in roles.consumer.walk())
    verdicts = [op for op in roles.producer.walk() if isinstance(op, PipelineAcquire) and op.nbytes == 0]
    (question,) = (op for op in roles.consumer.walk() if isinstance(op, Failed))
    assert len(verdicts) == 1
    operations = list(roles.producer.walk())
    failing = [place for place, op in enumerate(operations) if isinstance(op, FailUnless)]
    assert max(failing) < operations.index(verdicts[0])
    computing = list(roles.consumer.walk())
    (store,) = (op for op in computing if isinstance(op, TmaStore))
    assert store.dropped
    assert computing.index(question) < computing.index(store)


def _of_verdict(op: Op) -> bool:
    kind = op.operands[0].type if op.operands else None
    return isinstance(kind, PipelineType) and op.operands[0].name == "verdict"


def _blocks(block: Block) -> list[Block]:
    return [block, *(one for op in block.operations for nested in op.regions for one in _blocks(nested))]


@pytest.mark.parametrize("kind", [PipelineAcquire, PipelineRelease])
def test_a_verdict_that_is_not_given_or_not_given_back_is_found(kind: type[Op]) -> None:
    function = lowered(program(CHECKED[0]))
    check_function(function)
    for block in _blocks(function.body):
        block.operations[:] = [op for op in block.operations if not (isinstance(op, kind) and _of_verdict(op))]
    with pytest.raises(ProtocolError):
        check_function(function)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a table", "a mask", "while", *CHECKED])
def test_nothing_spills_and_nothing_is_serialised(name: str, tmp_path: Any) -> None:
    built = compiled(program(name))
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    assert any(each.startswith("HGMMA") for each in instructions(built, tmp_path))


def test_every_load_of_an_operand_is_in_the_producer() -> None:
    for name in KERNELS:
        (roles,) = (op for op in lowered(program(name, 128)).walk() if isinstance(op, Roles))
        assert not any(isinstance(op, TmaLoad) for op in roles.consumer.walk())


HELD = """
def held(z: Mut, x: Tensor, y: Tensor):
    i, j, _ = ct.get_tile_block_id()
    a, b = x.load_tile((128, 64), (i, 0)), y.load_tile((64, 128), (0, j))
    acc = ct.constant(0, (128, 128), f32)
    for n in range(1, ct.ceil_div(x.shape[1], 64)):
        acc = ct.mma(x.load_tile((128, 64), (i, n)), y.load_tile((64, 128), (n, j)), acc)
    acc = BEHIND
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.mark.parametrize("behind", ["ct.mma(a, b, acc)", "ct.mma(a, b, acc) * 2.0"])
def test_loads_that_are_held_over_a_loop_have_a_pipeline_of_their_own(behind: str) -> None:
    """In one pipeline the loop would come to the held stage, and wait for its release."""
    operand = tensor(2, bf16)
    types: dict[str, Type] = {"z": mut(128, 128, dtype=bf16), "x": operand, "y": operand}
    made = lowered(written(HELD.replace("BEHIND", behind), types))
    assert check_function(made) > 10
    assert sum(isinstance(op, Pipeline) for op in made.walk()) == 2


PAIRS = """
def steps(z: Mut, x: Tensor, y: Tensor):
    i, j, _ = ct.get_tile_block_id()
    acc = zeros = ct.constant(0, (128, 64), f32)
    for k in range(ct.ceil_div(x.shape[1], 256)):
        a, b = x.load_tile((128, 256), (i, k)), y.load_tile((256, 64), (k, j))
        c, d = x.load_tile((128, 256), (i, k + 1)), y.load_tile((256, 64), (k + 1, j))
        first = ct.mma(LEFT, zeros)
        second = ct.mma(RIGHT, zeros)
        acc = acc + FIRST
        third = ct.mma(x.load_tile((128, 256), (i, k + 2)), y.load_tile((256, 64), (k + 2, j)), zeros)
        acc = acc + second * 3.0 + third + BEHIND
    z.store(ct.convert_tile(acc, z.dtype))
"""


@pytest.mark.parametrize(
    ("pairs", "first", "behind", "alone"),
    [
        ("a, b; c, d", "first * 2.0", "1.0", True),
        ("c, d; a, b", "first * 2.0", "1.0", False),
        ("a, b; c, d", "1.0", "first * 2.0", False),
        ("a, b; c, d", "first * 2.0", "ct.reduce_sum(ct.convert_tile(a, f32), 1).reshape((128, 1))", False),
    ],
    ids=["steps", "another order of products", "sums read late", "a tile read late"],
)
def test_a_step_of_k_waits_for_no_stage_that_is_held(pairs: str, first: str, behind: str, alone: bool) -> None:
    """Two stages are for the last step and this one: one before them may hold none."""
    operand = tensor(2, bf16)
    types: dict[str, Type] = {"z": mut(128, 64, dtype=bf16), "x": operand, "y": operand}
    left, right = pairs.split("; ")
    text = PAIRS.replace("LEFT", left).replace("RIGHT", right).replace("FIRST", first).replace("BEHIND", behind)
    function = lowered(written(text, types))
    check_function(function)
    assert sum(isinstance(op, Pipeline) for op in function.walk()) == alone
