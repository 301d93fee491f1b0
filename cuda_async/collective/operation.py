"""Collectives as operations: a collective of all ranks, a message, a barrier.

Each is lent its operands, enqueues one meeting of ranks on a stream, and yields its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from cuda_async.collective.board import Call, Key
from cuda_async.collective.buffer import Buffer, buffer_of
from cuda_async.collective.engine import Engine, Seat
from cuda_async.collective.semantics import REDUCTIONS, supported
from cuda_async.core.lease import Use
from cuda_async.errors import ArgumentError, ArgumentTypeError
from cuda_async.op import DeviceOp
from cuda_async.site import format_site

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext

__all__ = ("Barrier", "Collective", "Message", "Operand")

T = TypeVar("T")

Draw = Callable[[int], Key]
"""The key of a local rank's next meeting."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of a collective.

    Attributes:
        name: for errors.
        given: the user's argument: a tensor, or a list with one for each local rank.
        reads: which ranks read it: all (True), none (False), or the rank of this number.
        writes: which ranks write it, likewise.
    """

    name: str
    given: Any
    reads: bool | int = False
    writes: bool | int = False

    def is_written(self, rank: int) -> bool:
        """Whether this rank writes it."""
        return self.writes if isinstance(self.writes, bool) else rank == self.writes

    def buffers(self, ranks: Sequence[int], kind: str) -> list[Buffer]:
        """The elements of each local rank's operand.

        Raises:
            TypeError: the argument is no tensor, or no list with one for each local rank.
        """
        what = f"{kind}: argument {self.name!r}"
        if len(ranks) == 1:
            return [buffer_of(self.given, what, write=self.is_written(ranks[0]))]
        arguments: Any = self.given
        if not isinstance(arguments, list | tuple) or len(cast("list[Any]", arguments)) != len(ranks):
            raise ArgumentTypeError(
                f"{what}: expected a list of {len(ranks)} operands, one for each local rank, got "
                f"{cast('Any', arguments)!r}; what one rank does alone is called on communicator[rank]"
            )
        items = zip(ranks, cast("list[Any]", arguments), strict=True)
        return [buffer_of(item, f"{what} of rank {rank}", write=self.is_written(rank)) for rank, item in items]


class _Meeting(DeviceOp[T]):
    """Enqueues one meeting of local ranks with the others."""

    __slots__ = ("_engine", "_parts", "_result", "_uses")

    has_effects = True
    graph_node = True

    def __init__(self, engine: Engine, result: T) -> None:
        super().__init__()
        self._engine = engine
        self._result = result
        self._parts: Callable[[], list[tuple[Key, Seat]]] = list
        self._uses: list[tuple[Buffer, bool]] = []

    def execute(self, context: ExecutionContext) -> T:
        stream = context.stream
        for buffer, write in self._uses:
            buffer.storage.use(stream, write=write, peer=True)  # the stream may be another device's
        self._engine.enqueue(stream, self._parts)
        return self._result


class Collective(_Meeting[Any]):
    """A collective of all ranks.

    Raises:
        ValueError: operands do not fit one another, or no reduction has this name.
    """

    __slots__ = ("_kind",)

    def __init__(
        self,
        engine: Engine,
        ranks: Sequence[int],
        world: int,
        kind: str,
        operands: list[Operand],
        op: str,
        root: int,
        draw: Draw,
    ) -> None:
        self._kind = kind
        columns = [operand.buffers(ranks, kind) for operand in operands]
        rows = [[column[i] for column in columns] for i in range(len(ranks))]
        for row in rows:
            _check(kind, row[0], row[-1], world, op)
            engine.check(row[0].dtype, op)
        given = [operand.given for operand in operands]
        super().__init__(engine, given[0] if len(given) == 1 else tuple(given))
        seats = [
            _seat(rank, kind, row[0], row[-1], op, root, format_site(self.site))
            for rank, row in zip(ranks, rows, strict=True)
        ]
        self._parts = lambda: [(draw(seat.rank), seat) for seat in seats]
        uses: list[Use] = []
        for rank, row in zip(ranks, rows, strict=True):
            for operand, buffer in zip(operands, row, strict=True):
                write = operand.is_written(rank)
                name = operand.name if len(ranks) == 1 else f"{operand.name} of rank {rank}"
                self._uses.append((buffer, write))
                uses.append(Use(name, buffer.storage, write, buffer.start, buffer.stop))
        self.lend(*uses)

    def label(self) -> str:
        return self._kind


class Message(_Meeting[Any]):
    """One half of a message: a `send`, or its `recv`."""

    __slots__ = ("_kind",)

    def __init__(self, engine: Engine, rank: int, kind: str, x: Any, sender: int, receiver: int, draw: Draw) -> None:
        self._kind = kind
        buffer = buffer_of(x, f"{kind}: argument 'x'", write=rank == receiver)
        super().__init__(engine, x)
        seat = _seat(rank, "message", buffer, buffer, "", sender, format_site(self.site), method=kind)
        seat = replace(seat, peer=receiver if rank == sender else sender)
        self._parts = lambda: [(draw(rank), seat)]
        write = rank == receiver
        self._uses.append((buffer, write))
        self.lend(Use("x", buffer.storage, write, buffer.start, buffer.stop))

    def label(self) -> str:
        return self._kind


class Barrier(_Meeting[None]):
    """A meeting without data."""

    __slots__ = ()

    def __init__(self, engine: Engine, ranks: Sequence[int], draw: Draw) -> None:
        super().__init__(engine, None)
        call = Call("barrier", "barrier", f"barrier() at {format_site(self.site)}")
        # No reduction, root 0, no elements to read or write.
        seats = [Seat(rank, call, "", 0, np.dtype(np.uint8), 0, 0, 0, 0) for rank in ranks]
        self._parts = lambda: [(draw(seat.rank), seat) for seat in seats]


def _check(kind: str, x: Buffer, into: Buffer, world: int, op: str) -> None:
    if op:
        if op not in REDUCTIONS:
            raise ArgumentError(f"{kind}: op {op!r}; expected one of {', '.join(REDUCTIONS)}")
        why = supported(x.dtype, op)
        if why:
            raise ArgumentError(f"{kind}: {why}")
    if x.dtype != into.dtype:
        raise ArgumentError(f"{kind}: x has elements of {x.dtype}, into of {into.dtype}; expected one dtype")
    factor = {"all_gather": (world, 1), "reduce_scatter": (1, world)}.get(kind, (1, 1))
    if x.elements * factor[0] != into.elements * factor[1]:
        words = {"all_gather": f"{world} times as many in into", "reduce_scatter": f"{world} times as many in x"}
        raise ArgumentError(
            f"{kind}: x has {x.elements} elements, into has {into.elements}; expected {words.get(kind, 'as many')}"
        )
    if kind == "all_to_all" and x.elements % world:
        raise ArgumentError(f"{kind}: x has {x.elements} elements; expected a multiple of {world}, one part a rank")


def _seat(rank: int, kind: str, x: Buffer, into: Buffer, op: str, root: int, site: str, *, method: str = "") -> Seat:
    details = [f"{x.dtype}[{x.elements}]"]
    if op:
        details.append(op)
    if kind in ("reduce", "broadcast"):
        details.append(f"root={root}")
    form = f"{kind}({', '.join(details)})"
    call = Call(kind, form, f"{method or kind}({', '.join(details)}) at {site}")
    return Seat(rank, call, op, root, x.dtype, x.address, x.elements, into.address, into.elements)
