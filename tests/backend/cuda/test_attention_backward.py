"""The gradients of attention on Hopper: buffers read in both orders, four products in a loop, and their registers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.loops.latent import latent
from cuda_async import Device
from cutile import api, bf16, f16, f32, i32, use_backend
from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.pipelines import check_function
from cutile.backend.cuda.model.properties import check_stores, check_written
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import (
    AddTile,
    Barrier,
    Dot,
    DotWait,
    NextTile,
    PipelineRelease,
    PipelineWait,
    Roles,
    TmaLoad,
    TmaStore,
    WriteOperand,
)
from cutile.backend.cuda.ops.pipeline import BufferType, buffer_types
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.errors import IRError
from cutile.ir.control import For
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import MutType
from cutile.ir.verify import verify
from cutile.ops.compare import Select
from cutile.ops.matmul import Mma
from kernels.attention_backward import (
    LOG2_E,
    attend_backward,
    attention_dk_dv,
    attention_dq,
    attention_gradients,
    gradients_of,
    weights_of,
)
from tests.backend.cuda.executed import execute
from tests.backend.cuda.programs import compiled, instructions, lowered, shipped, written
from tests.support.programs import mut, scalar, tensor

Array = np.ndarray[Any, Any]


def keys_program(width: int = 128, *, causal: bool = False, group: int = 1) -> Function:
    """dk and dv."""
    operand, term = tensor(3, bf16), tensor(2, f32)
    tile = mut(1, 128, width, dtype=bf16)
    given = {"dk": tile, "dv": tile, **dict.fromkeys(("q", "k", "v", "do"), operand), "top": term, "delta": term}
    return shipped(attention_dk_dv, {**given, "scale": scalar()}, CAUSAL=int(causal), GROUP=group)


def rows_program(width: int = 128, *, causal: bool = False, group: int = 1) -> Function:
    """dq."""
    operand, term = tensor(3, bf16), tensor(2, f32)
    tile = mut(1, 128, width, dtype=bf16)
    given = {"dq": tile, **dict.fromkeys(("q", "k", "v", "do"), operand), "top": term, "delta": term}
    return shipped(attention_dq, {**given, "scale": scalar()}, CAUSAL=int(causal), GROUP=group)


def gradients_program(width: int = 128, *, causal: bool = False, group: int = 1, alignment: int = 16) -> Function:
    """dk and dv, and sums of dq at addresses of some alignment."""
    operand, term = tensor(3, bf16), tensor(2, f32)
    tile = mut(1, 128, width, dtype=bf16)
    given = {"dk": tile, "dv": tile, "dq": MutType(tensor(3, alignment=alignment), (group, 128, width))}
    given |= {**dict.fromkeys(("q", "k", "v", "do"), operand), "top": term, "delta": term, "scale": scalar()}
    return shipped(attention_gradients, given, unsafe=True, CAUSAL=int(causal), GROUP=group)


PROGRAMS = {"dk and dv": keys_program, "dq": rows_program, "all": gradients_program}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_pipeline_is_proved(name: str, causal: bool) -> None:
    function = lowered(PROGRAMS[name](causal=causal))
    verify(function)
    assert not any(isinstance(op, Mma) for op in function.walk())
    assert check_function(function) > 10
    assert check_layouts(function) > 10


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_read_in_both_orders_is_loaded_once(name: str) -> None:
    """Scores take keys (of dq) or rows (of dk) along their width, gradients take them along the other axis."""
    function = lowered(PROGRAMS[name]())
    dots = [op for op in function.walk() if isinstance(op, Dot)]
    orders: dict[str, set[bool]] = {}
    for dot in dots:
        orders.setdefault(dot.right.name, set()).add(dot.right_k_major)
    both = {False, True}
    wanted = {"q_buffer": both, "do_buffer": both, "k_buffer": {False}, "v_buffer": set[bool]()}
    wanted = {"k_buffer": both, "v_buffer": {True}} if name == "dq" else wanted
    assert orders == {buffer: wanted[buffer] for buffer in orders}
    loads = [op.x.name for op in function.walk() if isinstance(op, TmaLoad)]
    # Of dq in a second loop, of keys that not every row sees; of the others what threads read beside.
    again = ["k", "v"] if name == "dq" else ["top", "delta"]
    assert sorted(loads) == sorted(["q", "k", "v", "do", *again])


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operand_read_in_the_wrong_order_is_found(name: str) -> None:
    function = lowered(PROGRAMS[name]())
    check_layouts(function)
    dot = next(op for op in function.walk() if isinstance(op, Dot) and not op.right_k_major)
    dot.attributes["right_k_major"] = True
    with pytest.raises(IRError, match="deep"):
        check_layouts(function)


def test_a_product_goes_on_while_the_next_ones_operand_is_computed() -> None:
    """Words of two products that no loop carries are in registers of their own."""
    (roles,) = (op for op in lowered(keys_program()).walk() if isinstance(op, Roles))
    loop = [op for op in roles.consumer.walk() if isinstance(op, For)][-1]
    steps = [op for op in loop.body.operations if isinstance(op, Dot | DotWait)]
    kinds = [(type(op).__name__, op.from_registers if isinstance(op, Dot) else op.pending) for op in steps]
    begun, ahead = [("Dot", False), ("Dot", False), ("DotWait", 1)], [("Dot", True), ("DotWait", 1), ("Dot", True)]
    assert kinds == [*begun, *ahead, ("DotWait", 0), ("DotWait", 0)]


def test_what_consumers_write_has_two_places_where_memory_has_room() -> None:
    """One meeting for each write; where there is room for one place, the reduction ahead of it is the other."""
    operand, sums = tensor(3, bf16), {"part": mut(1, 64, 512), "lse": mut(1, 64, 1)}
    decoding = shipped(latent, {**sums, "q": operand, "k": operand, "scale": scalar()})
    for program, stages in ((gradients_program(), 2), (decoding, 1)):
        function = lowered(program)
        writes = [op for op in function.walk() if isinstance(op, WriteOperand)]
        assert {kind.stages for kind in buffer_types([op.buffer for op in writes])} == {stages}
        assert sum(isinstance(op, Barrier) for op in function.walk()) == len(writes)


def test_a_thread_block_goes_on_with_its_next_tile_block_as_soon_as_may_be() -> None:
    """Its producer asks for that behind all loads; consumers give up keys ahead of what they store."""
    (roles,) = (op for op in lowered(gradients_program(causal=True)).walk() if isinstance(op, Roles))
    order = {type(op): at for at, op in enumerate(roles.producer.walk())}  # of the last of each kind
    assert order[TmaLoad] < order[NextTile]
    last = [op for op in roles.consumer.walk() if isinstance(op, PipelineRelease | TmaStore)][-5:]
    kinds = [PipelineRelease, PipelineRelease, TmaStore, TmaStore, PipelineRelease]
    assert [type(op) for op in last] == kinds


def barrier_left_out(function: Function) -> None:
    """A product begins before all have written."""
    drop(function, Barrier, 0)


def one_place(function: Function) -> None:
    """A warpgroup writes where another one's product may still read."""
    buffer, _ = written_operand(function)
    assert isinstance(buffer.type, BufferType)
    buffer.type = replace(buffer.type, stages=1)


def place_not_counted(function: Function) -> None:
    """A product reads what was written in the first iteration."""
    _, reader = written_operand(function)
    right, counter, left, _ = reader.operands
    reader.operands = (right, counter, left, counter)


def written_operand(function: Function) -> tuple[Value, Dot]:
    """The buffer that consumers write, and the product that reads it."""
    (buffer,) = (op.buffer for op in function.walk() if isinstance(op, WriteOperand))
    (reader,) = (op for op in function.walk() if isinstance(op, Dot) and op.left is buffer)
    return buffer, reader


def product_not_waited_for(function: Function) -> None:
    """The products that read what was written last go on while it is written anew."""
    for op in function.walk():
        if isinstance(op, DotWait):
            op.attributes["pending"] = 9


def drop(function: Function, kind: type[Op], which: int) -> None:
    """Take an operation out of the innermost loop of the consumers."""
    (roles,) = (op for op in function.walk() if isinstance(op, Roles))
    loop = [op for op in roles.consumer.walk() if isinstance(op, For)][-1]
    loop.body.operations.remove([op for op in loop.body.operations if isinstance(op, kind)][which])


@pytest.mark.parametrize(
    "fault",
    [barrier_left_out, one_place, place_not_counted, product_not_waited_for],
    ids=lambda each: each.__name__,
)
def test_an_operand_that_consumers_write_is_proved(fault: Callable[[Function], None]) -> None:
    function = lowered(gradients_program())
    check_written(function)
    fault(function)
    with pytest.raises(ProtocolError):
        check_written(function)


def test_sums_are_added_to_memory_by_tma() -> None:
    """Each warp adds what it has of a tile, 32 columns at a time, while the products go on."""
    function = lowered(gradients_program())
    (op,) = (op for op in function.walk() if isinstance(op, TmaStore) and op.adds)
    assert not any(isinstance(each, AddTile) for each in function.walk())
    assert (op.attributes["span"], op.value.tile.shape, op.shape) == (32, (64, 128), (1, 64, 128))
    check_stores(function)


def test_the_next_scores_begin_ahead_of_the_fence_for_tma() -> None:
    """Behind the writing of dq to shared memory; with rows of 128 elements the fence is behind that at once."""
    (roles,) = (op for op in lowered(gradients_program(64)).walk() if isinstance(op, Roles))
    loop = [op for op in roles.consumer.walk() if isinstance(op, For)][-1]
    steps = [op for op in loop.body.operations if isinstance(op, Dot | DotWait | TmaStore)][-5:]
    write, begin = [op for op in steps if isinstance(op, TmaStore)]
    assert (write.part, begin.part, write.value) == ("write", "begin", begin.value)
    assert [type(op) for op in steps] == [TmaStore, Dot, TmaStore, DotWait, DotWait]
    assert steps[-1].result in loop.body.terminator.operands
    wide = [op.part for op in lowered(gradients_program()).walk() if isinstance(op, TmaStore) and op.adds]
    assert wide == [""]


ADDED = """
def added(left: Tensor, rows: Tensor, sums: Mut, done: Mut, *, BM: Const = 64):
    _, D = done.shape
    j, _, _ = ct.get_tile_block_id()
    a, to = ct.load_tile(left, (BM, 64), (j, 0)), sums.partition_full_mut((BM, D))
    for i in range(ct.num_tiles(rows.partition((64, D)), 0)):
        product = ct.mma(a, ct.load_tile(rows, (64, D), (i, 0)), ct.constant(0, (BM, D), f32))
        ct.atomic_red_view_tko(to, product, (i, 0), ct.atomic.ADDF)
    done.store(ct.constant(0, done.shape, bf16))
"""


@pytest.mark.parametrize("rows", [64, 128])
def test_a_stage_that_only_a_product_begun_ahead_reads_is_released(rows: int) -> None:
    """In the iteration after, behind which the last one must not wait for it again."""
    operand = tensor(2, bf16)
    given = {"left": operand, "rows": operand, "sums": MutType(tensor(2), (rows, 64)), "done": mut(128, 64, dtype=bf16)}
    function = lowered(written(ADDED, given, unsafe=True, BM=rows))
    assert [op.part for op in function.walk() if isinstance(op, TmaStore) and op.adds] == ["write", "begin"]
    assert check_function(function) > 10
    drop(function, PipelineRelease, 0)
    with pytest.raises(ProtocolError):
        check_function(function)


@pytest.mark.parametrize("index", ["ct.gather(table, i)", "ct.gather(table, ct.gather(table, i)) + 1"])
def test_sums_are_added_where_a_table_says(index: str) -> None:
    """The update's addresses are computed from those of two tensors."""
    operand = tensor(2, bf16)
    types = {"left": operand, "rows": operand, "sums": MutType(tensor(2), (64, 64)), "done": mut(128, 64, dtype=bf16)}
    text = ADDED.replace("rows: Tensor", "rows: Tensor, table: Tensor").replace("product, (i,", f"product, ({index},")
    for unsafe, update in ((True, "atomic_rmw"), (False, "cuda.tma_store")):  # unsafe, tile blocks keep their order
        text = text if unsafe else text.replace("sums.partition_full_mut((BM, D))", "sums")
        made = lowered(written(text, {**types, "table": tensor(1, i32)}, unsafe=unsafe, BM=64))
        verify(made)
        assert update in [op.name for op in made.walk()]


def next_scores_not_waited_for(function: Function) -> None:
    """They read a stage that may have yet to arrive."""
    drop(function, PipelineWait, -1)


def written_and_not_begun(function: Function) -> None:
    """What is in shared memory is written over, and never added."""
    drop(function, TmaStore, 1)


def begun_and_not_written(function: Function) -> None:
    """What was added before is added once more."""
    drop(function, TmaStore, 0)


def last_scores_of_the_next_stage(function: Function) -> None:
    """The last iteration waits for rows that nobody loads."""
    for op in function.walk():
        if isinstance(op, Select):
            op.operands = (op.condition, op.x, op.x)


@pytest.mark.parametrize(
    "fault",
    [next_scores_not_waited_for, written_and_not_begun, begun_and_not_written, last_scores_of_the_next_stage],
    ids=lambda each: each.__name__,
)
def test_what_is_begun_ahead_is_proved(fault: Callable[[Function], None]) -> None:
    function = lowered(gradients_program(64))
    assert check_function(function) > 10
    fault(function)
    with pytest.raises(ProtocolError):
        check_function(function)


def test_what_tma_cannot_add_threads_do() -> None:
    function = lowered(gradients_program(alignment=4))
    assert not any(isinstance(op, TmaStore) and op.adds for op in function.walk())
    assert any(isinstance(op, AddTile) for op in function.walk())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width"), [("dk and dv", 128), ("dq", 128), ("all", 128), ("all", 64)])
def test_nothing_spills_and_nothing_is_serialised(name: str, width: int, tmp_path: Any) -> None:
    """Nor are the producer's loops unrolled, whose registers are few."""
    function = PROGRAMS[name](width, causal=True)
    built = compiled(function)
    assert (built.facts["spills"], built.facts["stack"], built.facts["remarks"]) == (0, 0, ()), built.log
    names = instructions(built, tmp_path)
    assert not any(each.startswith("HMMA") for each in names)
    buffers = buffer_types([op.buffer for op in lowered(function).walk() if isinstance(op, TmaLoad)])
    smem_layout = sum(
        SmemLayout(*buffer.smem_layout).count for buffer in buffers
    )  # of which one instruction each loads one
    assert sum(names[each] for each in names if each.startswith("UTMALDG")) == smem_layout


@pytest.mark.parametrize(("shape", "causal"), [((4, 2, 37, 50), True), ((2, 1, 64, 40), False), ((1, 1, 5, 5), True)])
def test_gradients_are_right(shape: tuple[int, int, int, int], causal: bool) -> None:
    """Edges, heads that share keys, rows that see few keys; tests/kernels has these kernels compiled for the CPU."""
    with use_backend("reference"):
        assert errors_of(shape, 16, causal, repeats=not causal, rows=16, keys=16, step=16) < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "width"), [((4, 2, 500, 500), 128), ((2, 2, 300, 700), 64), ((3, 3, 1024, 1024), 128)], ids=str
)
def test_gradients_are_right_on_a_gpu(
    shape: tuple[int, int, int, int], width: int, causal: bool, repeats: bool
) -> None:
    with Device(0):
        assert errors_of(shape, width, causal, repeats=repeats) < 2e-3


@pytest.mark.parametrize(("name", "width"), [*((name, 128) for name in PROGRAMS), ("all", 64)])
def test_what_is_lowered_means_the_gradients(name: str, width: int) -> None:
    """By NumPy, with barriers, stages and products under way, in an order that is drawn."""
    do, q, k, v = drawn((2, 1, 150, 200), width, bf16.numpy)
    exact = tuple(each.astype(np.float64) for each in (do, q, k, v))
    weights, lse = weights_of(exact[1], exact[2].repeat(2, 0), causal=False)
    top = (lse * LOG2_E).astype(np.float32)
    delta = (exact[0] * (weights @ exact[3].repeat(2, 0))).sum(2).astype(np.float32)
    scale = np.float32(width**-0.5)
    dq, dk, dv = (np.full(each.shape, np.nan, bf16.numpy) for each in (q, k, v))
    sums = np.zeros((2, 256, width), np.float32)
    inputs = (q, k, v, do, top, delta, scale)
    function = lowered(PROGRAMS[name](width, group=2))
    with np.errstate(all="ignore"):
        if name == "dq":
            execute(function, (dq, *inputs), (2, 2, 1), blocks=2, seed=1)
        else:
            outputs = (dk, dv, *((sums,) if name == "all" else ()))
            execute(function, (*outputs, *inputs), (1, 2, 1), blocks=2, seed=1)
    gradients = (sums[:, :150] * scale if name == "all" else dq, dk, dv)
    wanted = gradients_of(*exact, causal=False)
    which = {"dq": (0,), "dk and dv": (1, 2), "all": (0, 1, 2)}[name]
    assert max(relative(gradients[at], wanted[at]) for at in which) < 6e-3


def drawn(shape: tuple[int, int, int, int], width: int, dtype: Any) -> tuple[Array, ...]:
    """do, q, k and v."""
    heads, key_heads, rows, keys = shape
    random = np.random.default_rng(1)
    counts = ((heads, rows), (heads, rows), (key_heads, keys), (key_heads, keys))
    return tuple(random.standard_normal((*count, width)).astype(dtype) for count in counts)


def relative(found: Array, wanted: Array) -> float:
    """The error, of the norm."""
    return math.sqrt(((found.astype(np.float64) - wanted) ** 2).sum() / (wanted**2).sum())


def errors_of(shape: tuple[int, int, int, int], width: int, causal: bool, **options: int) -> float:
    """The largest error of the three gradients, of their norms."""
    heads, key_heads, *_ = shape
    do, q, k, v = drawn(shape, width, np.float16)
    exact = tuple(each.astype(np.float64) for each in (do, q, k, v))
    weights, lse = weights_of(exact[1], exact[2].repeat(heads // key_heads, 0), causal=causal)
    o = (weights @ exact[3].repeat(heads // key_heads, 0)).astype(np.float16)
    given = [api.from_numpy(each).sync() for each in (do, q, k, v, o, lse.astype(np.float32))]
    out = tuple(api.full(float("nan"), each.shape, f16).sync() for each in (q, k, v))
    results = attend_backward(*given, out=out, causal=causal, **options).sync()
    found = [result.to_numpy().sync().astype(np.float64) for result in results]
    wanted = gradients_of(*exact, causal=causal)
    return max(map(relative, found, wanted))
