"""A lowered kernel without warp specialisation run on NumPy, with a model of its stages. No tests.

`Copies` is a model of `cp.async` stages: their elements, and which accesses may race. All threads run the same program,
and each may be anywhere between two barriers. So a barrier must lie between a thread's write and another thread's read
or write of the same bytes. A thread sees its own copies after it has waited for their group (PTX ISA,
"cp.async.wait_group").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cutile.backend.cuda.intrinsics.math import MAX_TOP, MAX_UNSCALED_TOP, MIN_TOP
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops import (
    Again,
    Barrier,
    ClusterTileBlockId,
    ConvertLayout,
    FailUnless,
    NegativeExp,
    PadEdges,
    ProductHalf,
    RowExp,
    RowExpSum,
    RowExpUnit,
    RowQuotient,
    SliceWait,
    StageCommit,
    StagedMma,
    StagePut,
    StageRead,
    StageTile,
    StageWait,
    Store,
)
from cutile.backend.cuda.smem_sizes import Stage, stages
from cutile.backend.interface import Grid
from cutile.backend.reference.interpret import Walker, load, load_view, store
from cutile.dtypes import bf16
from cutile.ir.core import Function, Op, Value
from cutile.ops.elementwise import rounded
from cutile.ops.view import padding_value

Array = np.ndarray[Any, Any]


@dataclass
class _Stage:
    """A stage: bytes of shared memory.

    Attributes:
        begin, end: its offsets in shared memory.
        elements: its contents.
        written_at: barriers passed when it was written, or when its copy arrived.
        read_at: barriers passed when another thread last read it; -1 for never.
        copied: whether a copy wrote it. Each thread copies to the same bytes of a stage each time, so a new copy needs
            no barrier after the old one.
        under_way: whether a copy to it is under way.
    """

    begin: int
    end: int
    elements: Array
    written_at: int = -1
    read_at: int = -1
    copied: bool = False
    under_way: bool = False


class Copies:
    """The stages of one thread block, in the order of its program."""

    def __init__(self) -> None:
        self._barriers = 0
        self._groups: list[list[_Stage]] = []
        self._begun: list[_Stage] = []
        self._stages: dict[int, _Stage] = {}

    def _write(self, begin: int, elements: Array) -> _Stage:
        """Write a stage, in place of all stages that overlap it.

        Stages are read as a whole, so nobody reads the rest of an overlapped one.

        Raises:
            ProtocolError: another thread may still read or write there, or a copy is under way.
        """
        stage = _Stage(begin, begin + elements.nbytes, elements, self._barriers)
        for other in [old for old in self._stages.values() if old.begin < stage.end and begin < old.end]:
            if other.under_way:
                raise ProtocolError(f"bytes {begin} and following are written while a copy to them is under way")
            if other.written_at == self._barriers and not other.copied:  # no barrier since
                raise ProtocolError(f"bytes {begin} and following are written while other threads may still write them")
            if other.read_at == self._barriers:
                raise ProtocolError(f"bytes {begin} and following are written while other threads may still read them")
            del self._stages[other.begin]
        self._stages[begin] = stage
        return stage

    def copy(self, begin: int, elements: Array) -> None:
        """Begin to copy elements to byte `begin`."""
        stage = self._write(begin, elements)
        stage.under_way = stage.copied = True
        self._begun.append(stage)

    def put(self, begin: int, elements: Array) -> None:
        """Write elements from registers to byte `begin`."""
        self._write(begin, elements)

    def commit(self) -> None:
        """Make a group of the copies begun since the last commit.

        It may be empty (PTX ISA, "cp.async.commit_group").
        """
        self._groups.append(self._begun)
        self._begun = []

    def wait(self, pending: int) -> None:
        """Wait for all groups but the last `pending`."""
        finished = max(0, len(self._groups) - pending)
        for group in self._groups[:finished]:
            for stage in group:
                stage.under_way, stage.written_at = False, self._barriers
        del self._groups[:finished]

    def meet(self) -> None:
        """All threads pass a barrier."""
        self._barriers += 1

    def read(self, begin: int, *, own: bool = False) -> Array:
        """Read the stage that begins at a byte.

        Args:
            begin: the byte. Stages are read as a whole.
            own: whether each thread reads only bytes that it copied itself. It needs no barrier for that, nor one
                before it copies there again.

        Raises:
            ProtocolError: the copy is not complete, or no barrier has followed it.
        """
        stage = self._stages.get(begin)
        if stage is None:
            raise ProtocolError(f"nothing was copied to byte {begin}")
        if stage.under_way:
            raise ProtocolError(f"byte {begin} is read while the copy to it is under way")
        if not own:
            if stage.written_at == self._barriers:
                raise ProtocolError(f"byte {begin} is read before the threads that wrote there have met")
            stage.read_at = self._barriers
        return stage.elements

    def end(self) -> None:
        """The kernel ends.

        Raises:
            ProtocolError: copies are under way.
        """
        if self._begun or any(stage.under_way for group in self._groups for stage in group):
            raise ProtocolError("copies are under way when the kernel ends")


def row_exp_unit(m: Array) -> Array:
    """`2 ** M / e ** m`, as `intrinsics/math.py` states it for `row_exp_unit`."""
    power = np.log2(np.e) * m.astype(np.float64)
    whole = np.where((m >= 0) & (m <= MAX_UNSCALED_TOP), 0, np.rint(power))
    with np.errstate(invalid="ignore", over="ignore"):
        inside = (m >= MIN_TOP) & (m <= MAX_TOP)
        return np.where(inside, np.exp2(whole - power), 1.0).astype(np.float32)


def row_exp(x: Array, m: Array) -> Array:
    """`RowExp` of one row or of several."""
    return rounded(np.exp, x - m) / row_exp_unit(m)


class StagedWalker(Walker):
    """One tile block of a lowered kernel."""

    def __init__(self, function: Function, values: dict[Value, Array], index: Grid, grid: Grid) -> None:
        super().__init__(values, index, grid)
        self._function = function
        self._layouts = layouts_of(function)
        self._copies = Copies()

    def run(self) -> None:
        """Run it to its end."""
        self.block(self._function.body)
        self._copies.end()

    def operation(self, op: Op) -> Sequence[Array]:
        values, copies = self.values, self._copies
        match op:
            case StageTile():
                copies.copy(self._at(op, op.stage), self._copied(op))
                if op.copies:  # those of one row are complete together here
                    copies.commit()
            case StageCommit():
                copies.commit()
            case StageWait():
                copies.wait(op.pending)
                if op.meet:
                    copies.meet()
            case SliceWait():
                copies.wait(0 if op.bulk else op.later[int(values[op.part])])
            case Barrier():
                copies.meet()
            case StageRead():
                elements = copies.read(self._at(op, op.stage), own=op.own)
                return [elements[_places(op.shape, op.strides)]]
            case StagePut():
                acc = self._layouts[op.attributes["accumulator"]]
                tile = values[op.value]
                depth = tile.shape[0 if op.right else 1]
                stage = stages(op.dtype, acc, depth, right=op.other, swaps=op.swaps)[op.right]
                elements = np.full(stage.rows * stage.pitch, 77).astype(tile.dtype)
                elements[_of(stage, *tile.shape)] = tile
                copies.put(self._at(op, op.stage), elements)
            case StagedMma():
                acc = self._layouts[op.attributes["layout"]]
                rows, columns = op.acc.tile.shape
                where = stages(op.dtype, acc, op.depth, right=op.other, swaps=op.swaps)
                left = copies.read(self._at(op, op.left))[_of(where[0], rows, op.depth)]
                right = copies.read(self._at(op, op.right))[_of(where[1], op.depth, columns)]
                wide = np.promote_types(values[op.acc].dtype, np.float32 if op.dtype.kind == "float" else np.int32)
                return [values[op.acc] + (left.astype(wide) @ right.astype(wide)).astype(values[op.acc].dtype)]
            case ConvertLayout():
                return [values[op.x]]
            case Store():
                store(values[op.x], values[op.value], [int(values[each]) for each in op.index])
            case FailUnless():
                assert values[op.operands[0]]
            case Again():
                return [values[op.x]]
            case NegativeExp():
                return [rounded(np.exp, -values[op.x])]
            case ClusterTileBlockId():
                return [np.asarray(self._index[op.axis], np.int32)]
            case ProductHalf():
                whole = values[op.x].astype(np.uint64) * values[op.y].astype(np.uint64)
                return [(whole >> 32 * op.upper).astype(values[op.x].dtype)]
            case RowExp():
                return [row_exp(values[op.x], values[op.m])]
            case RowExpSum():
                return [row_exp(values[op.x], values[op.m]).sum(op.axis)]
            case RowExpUnit():
                return [row_exp_unit(values[op.m])]
            case RowQuotient():
                return [(values[op.x] / values[op.y]).astype(bf16.numpy)]
            case PadEdges():
                starts = [int(values[at]) * step for at, step in zip(op.index, op.steps, strict=False)]
                limits = {axis: int(values[at]) for axis, at in zip(op.limited, op.index[len(op.steps) :], strict=True)}
                inside = load_view(np.ones(values[op.x].shape), op.value.tile.shape, starts, limits, 0) == 1
                padding = np.asarray(padding_value(op.padding)).astype(values[op.value].dtype)
                return [np.where(inside, values[op.value], padding)]
            case _:
                return super().operation(op)
        return []

    def _at(self, op: StageTile | StageRead | StagePut | StagedMma, place: tuple[int, int, int]) -> int:
        """The offset of an iteration's stage."""
        first, count, stage_bytes = place
        return int(op.attributes["offset"]) + first + int(self.values[op.iteration]) % count * stage_bytes

    def _copied(self, op: StageTile) -> Array:
        """A tile as it lies in its stage; places without an element hold 99."""
        array, index = self.values[op.x], [int(self.values[each]) for each in op.index]
        if op.steps:
            starts = [at * step for at, step in zip(index, op.steps, strict=False)]
            limits = dict(zip(op.limited, index[len(op.steps) :], strict=True))
            tile = load_view(array, op.shape, starts, limits, 0)
        else:
            tile = load(array, op.shape, index)
        places = _places(op.shape, op.strides)
        elements = np.full(int(places.max()) + 1, 99).astype(tile.dtype)
        elements[places] = tile
        return elements


def _places(shape: Sequence[int], strides: Sequence[int]) -> Array:
    return np.tensordot(np.asarray(strides), np.indices(shape), 1)


def _of(stage: Stage, rows: int, columns: int) -> Array:
    """The places of an operand's elements."""
    i, j = np.indices((rows, columns))
    at = replace(stage, offset=0)
    return j * at.pitch + i if at.swap else i * at.pitch + j


def run_lowered(function: Function, arrays: Sequence[Any], grid: Grid) -> None:
    """Run all tile blocks of a lowered kernel on its arguments, which it writes to."""
    for index in np.ndindex(grid):
        values = dict(zip(function.parameters, map(np.asarray, arrays), strict=True))
        StagedWalker(function, values, (index[0], index[1], index[2]), grid).run()
