"""A warp-specialised lowered kernel run by NumPy, with a GPU's barriers, stages and asynchronous products.

The producer and each consumer warpgroup is a coroutine; a random draw says which goes on. Barriers have phases that a
parity tells apart. Copies arrive some time after they begin. Products read their stages until they are waited for.
Tiles are whole arrays: `model/layouts.py` checks which thread holds which element.

    execute(function, arrays, grid, blocks=2, seed=0)

A fault is an error at once, in any order of the draws: a stage that is read without a wait, or after its release; a
stage that is released or filled while a product reads it; sums that are read while their product is under way.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import (
    AddTile,
    Barrier,
    BarriersStart,
    Buffer,
    ConvertLayout,
    Dot,
    DotWait,
    Elected,
    Failed,
    FailUnless,
    FirstTile,
    GridDependencyWait,
    NextTile,
    OptimizationBarrier,
    PackPairs,
    PackQuads,
    Pipeline,
    PipelineAcquire,
    PipelineRelease,
    PipelineWait,
    ReadBuffer,
    ReceiveTile,
    Roles,
    Scratch,
    SendTile,
    SetMaxRegisters,
    SimtMma,
    Store,
    Subtile,
    SumLanes,
    TileIndex,
    TileStep,
    TmaLoad,
    TmaPrefetch,
    TmaStore,
    TmaStoreWait,
    Undef,
    Uniform,
    WarpgroupIndex,
    WriteOperand,
    ZeroUnless,
)
from cutile.backend.cuda.ops.pipeline import BufferType, buffer_types
from cutile.backend.cuda.smem_layout import WGMMA_ROWS, SmemLayout
from cutile.backend.interface import Grid
from cutile.backend.reference.interpret import Walker, load, load_view, store
from cutile.conversion import exact
from cutile.ir.control import For, If, While
from cutile.ir.core import Block, Function, Op, Value

Array = np.ndarray[Any, Any]
Waiting = Generator["Callable[[], bool]", None, Any]
"""A coroutine: it yields the conditions that it waits for."""
WARPS = 4
"""Warps of a warpgroup."""
NOTHING = (TmaStoreWait, TmaPrefetch, GridDependencyWait, SetMaxRegisters, Scratch)
"""Operations without a meaning for whole arrays."""
SAME = (ConvertLayout, OptimizationBarrier, SumLanes, Uniform)
"""Operations whose result has the elements of the operand."""


class Executed(ProtocolError):
    """A fault of a kernel while it runs."""


@dataclass(eq=False)
class Fill:
    """The contents of a stage in one of its uses.

    Attributes:
        tiles: that have arrived, by buffer.
        missing: bytes that are announced and have not arrived.
        announced: whether the producer has acquired the stage for this use.
        number: of the next tile block, if the stage hands that on.
        released: the warpgroups that have released the stage.
        readers: products under way that read it.
        multiplied: the warpgroups that have begun a product that reads it.
    """

    tiles: dict[Value, Array] = field(default_factory=dict[Value, Array])
    missing: int = 0
    announced: bool = False
    number: Any = None
    released: set[int] = field(default_factory=set[int])
    readers: int = 0
    multiplied: set[int] = field(default_factory=set[int])


@dataclass
class Stage:
    """A stage of a pipeline, with its two barriers.

    Attributes:
        full, empty: how many phases of each barrier are complete.
        arrived: arrivals in this phase of `empty`.
        fill: its contents.
    """

    full: int = 0
    empty: int = 0
    arrived: int = 0
    fill: Fill = field(default_factory=Fill)


@dataclass(frozen=True, eq=False)
class Words:
    """A tile as packed words, which only products, writes of operands and delayed stores take."""

    tile: Array


@dataclass(eq=False)
class Begun:
    """A product under way: its sums, the fills that it reads, and a left operand in registers."""

    value: Array
    reads: list[Fill]
    left: Array | Words | None = None
    over: bool = False


@dataclass
class Warpgroup:
    """The state of a warpgroup; the producer's number is -1.

    Attributes:
        number: of the warpgroup.
        walker: its values.
        under_way: its products that have not been waited for.
        seen: fills for whose arrival it has waited.
        met: barriers of the consumers that it has reached.
    """

    number: int
    walker: Walker
    under_way: list[Begun] = field(default_factory=list[Begun])
    seen: list[Fill] = field(default_factory=list[Fill])
    met: int = 0


class ThreadBlock:
    """One of `blocks` thread blocks: it has every `blocks`-th tile block, or takes them from a counter."""

    def __init__(
        self,
        function: Function,
        values: dict[Value, Any],
        grid: Grid,
        block: int,
        blocks: int,
        numbers: Iterator[int],
        draw: random.Random,
        *,
        fails: bool = False,
    ) -> None:
        self._function = function
        self._grid = grid
        self._block, self._blocks = block, blocks
        self._taken = numbers
        self._fails = fails
        self._failed = np.False_
        self._draw = draw
        self._values = values
        self._stages: dict[Value, list[Stage]] = {}
        self._started: set[Value] = set()
        self._pipeline_of: dict[Value, Value] = {}
        self._arriving: list[Callable[[], None]] = []
        self._written: dict[tuple[Value, int], Fill] = {}
        self._consumers: list[Warpgroup] = []

    def run(self) -> None:
        """Go through its tile blocks.

        Raises:
            Executed: a warp waits for ever, or makes another fault.
        """
        start = Warpgroup(-1, Walker(self._values, (0, 0, 0), self._grid))
        roles = None
        for op in self._function.body.operations:
            if isinstance(op, Roles):
                roles = op
            elif not op.terminates:
                for _ in self._operation(op, start):
                    raise Executed("all warps wait, before they have their roles")
        assert roles is not None
        sides = [(-1, roles.producer), *((number, roles.consumer) for number in range(roles.warpgroups))]
        running: list[tuple[Waiting, Callable[[], bool]]] = []
        for number, body in sides:
            group = Warpgroup(number, Walker(dict(self._values), (0, 0, 0), self._grid))
            self._consumers += [group] if number >= 0 else []
            running.append((self._block_of(body, group), lambda: True))
        while running or self._arriving:
            ready = [at for at, (_, waits) in enumerate(running) if waits()]
            choice = self._draw.randrange(len(ready) + len(self._arriving)) if ready or self._arriving else -1
            if choice < 0:
                raise Executed(f"deadlock: {len(running)} warps wait for ever")
            if choice >= len(ready):
                self._arriving.pop(choice - len(ready))()
                continue
            at = ready[choice]
            coroutine, _ = running[at]
            try:
                running[at] = (coroutine, next(coroutine))
            except StopIteration:
                del running[at]

    def _block_of(self, block: Block, group: Warpgroup) -> Generator[Callable[[], bool], None, list[Any]]:
        """Run a block; the result is the values that its terminator yields."""
        for op in block.operations:
            if op.terminates:
                return [group.walker.values[value] for value in op.operands]
            yield from self._operation(op, group)
        return []

    def _operation(self, op: Op, group: Warpgroup) -> Waiting:
        values = group.walker.values
        results: Sequence[Any] = ()
        match op:
            case For():
                results = yield from self._loop(op, group)
            case While():
                results = yield from self._while(op, group)
            case If():
                results = yield from self._block_of(op.then if values[op.condition] else op.orelse, group)
            case TmaStore() if op.adds:
                # As `AddTile` below; "begin" has the value too, so "write" is nothing here.
                if group.number == 0 and op.part != "write":
                    index, value = [int(values[each]) for each in op.index], self._read(values[op.value], op)
                    value = value.reshape(op.shape) if op.shape else value
                    store(values[op.x], load(values[op.x], value.shape, index) + value, index)
            case Buffer() | TmaStore() | Store() | BarriersStart() | Pipeline():
                self._set_up_or_store(op, values)
                results = [None] * len(op.results)
            case PipelineAcquire() | PipelineWait() | PipelineRelease() | TmaLoad() | SendTile():
                yield from self._shared(op, group)
            case Barrier():
                group.met += 1
                met = group.met
                yield lambda: all(each.met >= met for each in self._consumers)
            case WriteOperand():
                self._write(op, group)
            case AddTile():
                if group.number == 0:  # tiles are whole arrays: one warpgroup adds for all
                    index, value = [int(values[each]) for each in op.index], self._read(values[op.value], op)
                    store(values[op.x], load(values[op.x], value.shape, index) + value, index)
            case Dot():
                results = [self._begin(op, group)]
            case DotWait():
                results = [self._finish(op, group)]
            case FailUnless():
                if not values[op.condition] and not self._fails:
                    raise Executed(f"an assertion fails: {op.message}")
                self._failed |= ~values[op.condition]
            case WarpgroupIndex():
                results = [np.int32(group.number)]
            case Elected():
                results = [np.True_]
            case Failed():
                results = [self._failed]
            case NextTile():
                results = [np.int32(next(self._taken))]
            case ReceiveTile():
                results = [self._received(op, group)]
            case ReadBuffer():
                held, _ = self._operand(op, op.buffer, op.counter, group)
                shape = op.result.tile.shape
                for place in op.place:  # a single element, of the group that came with it
                    held = held[..., int(values[place]) % held.shape[-1] :][..., :1]
                results = [(held if op.axis == len(shape) - 1 else held.T).reshape(shape)]
            case FirstTile():
                results = [np.int32(self._block)]
            case TileStep():
                results = [np.int32(self._blocks)]
            case TileIndex():
                results = [np.int32(np.unravel_index(int(values[op.number]), self._grid)[op.axis])]
            case Subtile():
                x = values[op.x]
                tile = x.tile if isinstance(x, Words) else self._read(x, op)
                columns = tile.shape[1] // op.parts
                tile = tile[:, op.part * columns : (op.part + 1) * columns]
                results = [Words(tile) if isinstance(x, Words) else tile]
            case Undef():  # a number that no result has, so that a use of it shows
                results = [np.full(op.shape, -77, op.dtype.numpy)]
            case ZeroUnless():
                results = [self._read(values[op.x], op) * values[op.condition]]
            case SimtMma():
                results = [self._added(op, group)]
            case PackPairs() | PackQuads():
                results = [Words(self._read(values[op.x], op))]
            case _ if isinstance(op, NOTHING):
                results = [None] * len(op.results)
            case _ if isinstance(op, SAME):
                results = [self._read(values[op.operands[0]], op)]
            case _:
                for value in op.operands:
                    values[value] = self._read(values[value], op)
                results = group.walker.operation(op)
        values.update(zip(op.results, results, strict=True))

    def _loop(self, op: For, group: Warpgroup) -> Generator[Callable[[], bool], None, list[Any]]:
        values = group.walker.values
        start, stop, step = (int(values[each]) for each in op.operands[:3])
        carried = [values[each] for each in op.carried]
        for count in range(start, stop, step):
            values.update(zip(op.body.arguments, [np.asarray(count, np.int32), *carried], strict=True))
            carried = yield from self._block_of(op.body, group)
        return carried

    def _while(self, op: While, group: Warpgroup) -> Generator[Callable[[], bool], None, list[Any]]:
        values = group.walker.values
        carried = [values[each] for each in op.carried]
        while True:
            values.update(zip(op.condition.arguments, carried, strict=True))
            (goes_on,) = yield from self._block_of(op.condition, group)
            if not goes_on:
                return carried
            values.update(zip(op.body.arguments, carried, strict=True))
            carried = yield from self._block_of(op.body, group)

    def _set_up_or_store(self, op: Op, values: Any) -> None:
        match op:
            case Pipeline():
                self._stages[op.result] = [Stage() for _ in range(op.stages)]
                self._pipeline_of.update(dict.fromkeys(op.buffers, op.result))
            case BarriersStart():
                self._started.update(op.of)
            case TmaStore() | Store():
                index = [int(values[each]) for each in op.index]
                value = values[op.value]
                packed = isinstance(op, TmaStore) and op.packed and isinstance(value, Words)
                tile = value.tile if packed else self._read(value, op)
                if isinstance(op, TmaStore) and op.shape:
                    tile = tile.reshape(op.shape)
                store(values[op.x], tile, index)
            case _:
                pass

    @staticmethod
    def _read(value: Any, op: Op) -> Any:
        """A value that may be read: no words, and no sums under way."""
        if isinstance(value, Words):
            raise Executed(f"{op.name} takes words of two elements for elements")
        if isinstance(value, Begun):
            raise Executed(f"{op.name} reads sums that are under way")
        return value

    # Stages.

    def _shared(self, op: Op, group: Warpgroup) -> Waiting:
        values = group.walker.values
        assert isinstance(op, PipelineAcquire | PipelineWait | PipelineRelease | TmaLoad | SendTile)
        if op.pipeline not in self._started:
            raise Executed(f"{op.name}: the barriers of {op.pipeline.name} are not set up")
        stages = self._stages[op.pipeline]
        use, at = divmod(int(values[op.counter]), len(stages))
        stage = stages[at]
        match op:
            case PipelineAcquire() | SendTile():
                yield lambda: stage.empty % 2 != (use + 1) % 2
                if stage.fill.readers:
                    raise Executed(f"a stage of {op.pipeline.name} is filled while a product reads it")
                if stage.full != use:
                    raise Executed(f"{op.pipeline.name}: use {use} of a stage is announced as the {stage.full}th")
                nbytes = op.nbytes if isinstance(op, PipelineAcquire) else 0
                stage.fill = Fill(missing=nbytes, announced=True)
                stage.full += not nbytes
                if isinstance(op, SendTile):
                    stage.fill.number = values[op.number]
            case TmaLoad():
                self._begin_load(op, stage, values)
            case PipelineWait():
                yield lambda: stage.full % 2 != use % 2
                if stage.full != use + 1:
                    raise Executed(f"{op.pipeline.name}: use {use} of a stage is waited for, {stage.full} have arrived")
                group.seen.append(stage.fill)
            case PipelineRelease():
                if bool(values[op.condition]):
                    self._release(op, stage, group)

    def _begin_load(self, op: TmaLoad, stage: Stage, values: Any) -> None:
        fill, type_ = stage.fill, op.buffer.type
        assert isinstance(type_, BufferType)
        if self._pipeline_of[op.buffer] is not op.pipeline:
            raise Executed(f"{op.name} fills a buffer that is no buffer of {op.pipeline.name}")
        if not fill.announced:
            raise Executed(f"a stage of {op.pipeline.name} is loaded without having been acquired")
        index = [int(values[each]) for each in op.index]
        shape = op.shape or type_.shape
        starts = [at * step for at, step in zip(index, op.steps or shape, strict=True)]
        if (row := SmemLayout(*type_.smem_layout)).width > shape[op.axis]:  # a single element, with its group
            starts[op.axis] -= starts[op.axis] % row.span
            shape = (*shape[: op.axis], row.span, *shape[op.axis + 1 :])
        tile = load_view(values[op.x], shape, starts, {}, 0.0)
        matrix = tile.reshape(tile.shape[-2:])
        along = op.axis - (len(shape) - 2)  # contiguous in memory: the last one here
        held = matrix if along == 1 else matrix.T

        def arrive() -> None:
            fill.tiles[op.buffer] = held.copy()
            fill.missing -= SmemLayout(*type_.smem_layout).nbytes
            if fill.missing < 0:
                raise Executed(f"more bytes arrive on {op.pipeline.name} than are announced")
            stage.full += not fill.missing

        self._arriving.append(arrive)

    def _release(self, op: PipelineRelease, stage: Stage, group: Warpgroup) -> None:
        name, fill = op.pipeline.name, stage.fill
        if any(fill in each.reads for each in group.under_way):
            raise Executed(f"a stage of {name} is released while a product reads it")
        if group.number in fill.released:
            raise Executed(f"a stage of {name} is released twice")
        if not any(fill is each for each in group.seen):
            raise Executed(f"a stage of {name} is released by who has not seen it arrive")
        if not op.warps and group.number not in fill.multiplied:
            raise Executed(f"a stage of {name} is released for all warps, and no product kept the late ones with it")
        fill.released.add(group.number)
        stage.arrived += WARPS if op.warps else 1
        type_ = op.pipeline.type
        groups = sum(isinstance(each, Roles) and each.warpgroups for each in self._function.body.operations)
        if stage.arrived == type_.arrivals:  # type: ignore[attr-defined]
            stage.arrived = 0
            stage.empty += 1
            if len(fill.released) < groups:
                raise Executed(f"a stage of {name} is empty before all warpgroups have released it")

    def _received(self, op: ReceiveTile, group: Warpgroup) -> Any:
        stages = self._stages[op.pipeline]
        fill = stages[int(group.walker.values[op.counter]) % len(stages)].fill
        if not any(fill is each for each in group.seen) or group.number in fill.released:
            raise Executed("the number of the next tile block is read before or after it is there")
        return fill.number

    # Products.

    def _operand(
        self, op: Dot | ReadBuffer | SimtMma, buffer: Value, counter: Value, group: Warpgroup
    ) -> tuple[Array, Fill]:
        """A tile in a stage of a buffer, with the contiguous axis last; and the stage's fill."""
        name = buffer.name
        if (fill := self._written.get(self._place(buffer, counter, group))) is not None:
            return fill.tiles[buffer], fill
        stages = self._stages[self._pipeline_of[buffer]]
        stage = stages[int(group.walker.values[counter]) % len(stages)]
        fill = stage.fill
        if not any(fill is each for each in group.seen):
            raise Executed(f"a stage of {name} is read without having been waited for")
        if group.number in fill.released:
            raise Executed(f"a stage of {name} is read after it was released")
        if buffer not in fill.tiles:
            raise Executed(f"a stage of {name} is read that nothing was loaded to")
        return fill.tiles[buffer], fill

    @staticmethod
    def _place(buffer: Value, counter: Value, group: Warpgroup) -> tuple[Value, int]:
        (kind,) = buffer_types([buffer])
        return buffer, int(group.walker.values[counter]) % kind.stages

    def _write(self, op: WriteOperand, group: Warpgroup) -> None:
        """Write a warpgroup's part: every so many 64 rows, or some columns if all share the rows."""
        words = group.walker.values[op.words]
        if not isinstance(words, Words):
            raise Executed(f"{op.name} takes elements for words of two")
        tile = words.tile
        fill = self._written.setdefault(self._place(op.buffer, op.counter, group), Fill())
        if fill.readers:
            raise Executed(f"{op.buffer.name} is written while a product reads it")
        held = fill.tiles.get(op.buffer, np.full(tile.shape, np.nan, tile.dtype)).copy()
        groups = len(self._consumers)
        if len(tile) < WGMMA_ROWS * groups:
            own = tile.shape[1] // groups
            columns = slice(group.number * own, (group.number + 1) * own)
            held[:, columns] = tile[:, columns]
        else:
            mine = np.arange(len(tile)) // WGMMA_ROWS % groups == group.number
            held[mine] = tile[mine]
        fill.tiles[op.buffer] = held

    def _added(self, op: SimtMma, group: Warpgroup) -> Array:
        """Sums with a product of threads, which is finished at once."""
        sides: list[Array] = []
        for buffer in (op.left, op.right):
            held, _ = self._operand(op, buffer, op.counter, group)
            (kind,) = buffer_types([buffer])
            sides.append(held if SmemLayout(*kind.smem_layout).k_major else held.T)
        return group.walker.values[op.acc] + sides[0] @ sides[1].T

    def _begin(self, op: Dot, group: Warpgroup) -> Begun:
        values = group.walker.values
        reads: list[Fill] = []
        right, fill = self._operand(op, op.right, op.counter, group)
        reads.append(fill)
        right = (right.T if op.right_k_major else right)[op.right_first : op.right_first + op.depth]
        if op.left_counter is None:
            words = values[op.left]
            if not isinstance(words, Words):
                raise Executed(f"{op.name} takes elements for words of two")
            left = words.tile
        else:
            left, fill = self._operand(op, op.left, op.left_counter, group)
            left = (left if op.left_k_major else left.T)[:, op.left_first : op.left_first + op.depth]
            reads.append(fill)
        sums = [values[value] for value in op.sums]
        acc = sums[0] if sums and (not op.replaces or sums[1]) else None
        if isinstance(acc, Begun):
            if not acc.over and acc is not group.under_way[-1] and acc not in group.under_way:
                raise Executed("a product adds to sums of another warpgroup")
            acc = acc.value
        wide = op.acc_dtype.numpy
        product = exact(left, op.left_dtype).astype(wide) @ exact(right, op.right_dtype).astype(wide)
        words = None if op.left_counter is not None else values[op.left]
        begun = Begun(product if acc is None else product + acc, reads, words)
        for each in reads:
            each.readers += 1
            each.multiplied.add(group.number)
        group.under_way.append(begun)
        return begun

    def _finish(self, op: DotWait, group: Warpgroup) -> Any:
        count = max(0, len(group.under_way) - op.pending)
        for begun in group.under_way[:count]:
            begun.over = True
            for fill in begun.reads:
                fill.readers -= 1
        del group.under_way[:count]
        values = group.walker.values
        freed = [values[value] for value in op.left]
        if any(begun.left is words for begun in group.under_way for words in freed):
            raise Executed("registers of a left operand are given up while a product reads them")
        acc = values[op.acc]
        return acc.value if isinstance(acc, Begun) and acc.over and not op.goes_on else acc


def execute(
    function: Function, arguments: Sequence[Any], grid: Grid, blocks: int = 1, seed: int = 0, *, fails: bool = False
) -> None:
    """Run a kernel lowered to pipelines on arrays, which it stores to.

    Args:
        function: the kernel.
        arguments: its arguments.
        grid: of the launch.
        blocks: thread blocks, which run one after the other.
        seed: of the order of the warps.
        fails: whether assertions may fail; the results are then what is stored in spite of that.

    Raises:
        ProtocolError: its warps make a fault.
    """
    draw, numbers = random.Random(seed), itertools.count()
    for block in range(blocks):
        values: dict[Value, Any] = dict(zip(function.parameters, arguments, strict=True))
        ThreadBlock(function, values, grid, block, blocks, numbers, draw, fails=fails).run()
