"""Collectives as operations: a collective of all ranks, a message, a barrier.

Each borrows its operands, enqueues one meeting of ranks on a stream, and yields its operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from cuda_async.collective.board import Call, Key, words_by_rank
from cuda_async.collective.buffer import Buffer, buffer_of
from cuda_async.collective.engine import Engine, Seat
from cuda_async.collective.semantics import why_unsupported
from cuda_async.core.lease import Use, contested, current_holder, refuse_conflicts
from cuda_async.core.order import Nested
from cuda_async.core.stream import expect_stream
from cuda_async.errors import ArgumentError, ArgumentTypeError, raise_again, without_traceback
from cuda_async.op import DeviceOp
from cuda_async.site import Place, format_site, user_site

if TYPE_CHECKING:
    from cuda_async.core.context import ExecutionContext
    from cuda_async.core.storage import Storage
    from cuda_async.core.stream import Stream

__all__ = ("Barrier", "BoundCollective", "Collective", "Message", "Operand")

T = TypeVar("T")

Draw = Callable[[int], Key]
"""Returns the key of a local rank's next meeting."""

Parts = Callable[[], list[tuple[Key, Seat]]]
"""Returns each local rank's part of a call with the key of its meeting: a new key at each call."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument of a collective.

    Attributes:
        name: its name in errors.
        argument: the user's argument: a tensor, or a list with one for each local rank.
        writes: which ranks write it: all (True), none (False), or the rank of this number.
    """

    name: str
    argument: Any
    writes: bool | int = False

    def is_written(self, rank: int) -> bool:
        """Whether a rank writes it."""
        return self.writes if isinstance(self.writes, bool) else rank == self.writes  # `True == 1`, but is no rank

    def buffers(self, ranks: Sequence[int], kind: str) -> list[Buffer]:
        """The elements of each local rank's operand.

        Raises:
            TypeError: the argument is no tensor, or no list with one for each local rank.
        """
        what = f"{kind}: argument {self.name!r}"
        arguments: Any = self.argument
        # A list of one operand, too: a program for any number of devices passes lists.
        if len(ranks) == 1 and not (isinstance(arguments, list | tuple) and len(cast("list[Any]", arguments)) == 1):
            return [buffer_of(self.argument, what, write=self.is_written(ranks[0]))]
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
        self._parts: Parts = list  # returns no parts; subclasses set theirs, and their uses
        self._uses: tuple[Use, ...] = ()

    def bind(self, stream: Stream) -> BoundCollective:
        """Bind this call to `stream`, to be repeated.

        A repetition costs little more than NCCL's own call. All ranks must repeat it. Binding uses the operation up:
        it then borrows its operands no longer.

        Raises:
            OwnershipError: the operation was used before.

        Example:
            >>> import numpy as np
            >>> from cuda_async import Device
            >>> from cuda_async.collective import Buffer, Communicator
            >>> stream = Device.host().new_stream()
            >>> x = Buffer.put(np.array([3.0])).sync_on(stream)
            >>> with Communicator.of([Device.host()]) as rank:
            ...     bound = rank.all_reduce(x).bind(stream)
            ...     bound()
            ...     bound()
            ...     stream.synchronize()
        """
        expect_stream(stream)
        self.mark_bound()
        return BoundCollective(self.label(), self._engine, self._parts, self._uses, stream)

    def execute(self, context: ExecutionContext) -> T:
        stream = context.stream
        if stream.recorder is not None:
            stream.recorder.meets.append(self._engine.recorded())
        _enqueue(self._engine, stream, self._parts, self._uses)
        return self._result


class BoundCollective:
    """A collective, a message or a barrier bound to its operands and a stream.

    Made by `bind`. Between calls other operations may use the operands. Each call is ordered behind these operations,
    and refused while one of them borrows an operand in a conflicting way.
    """

    __slots__ = ("_engine", "_name", "_parts", "_site", "_stream", "_uses")

    def __init__(self, name: str, engine: Engine, parts: Parts, uses: tuple[Use, ...], stream: Stream) -> None:
        self._name = name
        self._engine = engine
        self._parts = parts
        self._uses = uses
        self._stream = stream
        self._site = user_site()

    @property
    def stream(self) -> Stream:
        """The stream on which calls are enqueued."""
        return self._stream

    def __call__(self) -> None:
        """Enqueue the call; does not wait.

        The call fails on all ranks if earlier bound calls on the stream, or work that writes an operand, have failed
        and nobody has waited for them. On this rank `stream.synchronize()` raises the error.

        Raises:
            OwnershipError: another operation borrows an operand in a conflicting way, or a graph uses an operand that
                is written. Nothing was enqueued then.
            CollectiveError: a communicator of GPUs is broken or closed. On the CPU waiters raise it.
            DeviceError: the device was lost.
        """
        stream = self._stream
        with Nested(current_holder(), stream), stream.submission:
            stream.continue_run()
            # `contested` is quick and seldom true; comparing the byte ranges takes a while.
            if any(contested(use.storage.leases, use.write) for use in self._uses):
                refuse_conflicts(self._uses, self, self._site)
            stream.driver.enter()  # NCCL asks for the thread's current GPU
            try:
                _enqueue(self._engine, stream, self._parts, self._uses)
            finally:
                stream.driver.leave()
            stream.lead_lenders()  # streams of other libraries that lend memory wait for the call

    def __repr__(self) -> str:
        return f"<bound {self._name} on {self._stream}>"


class Collective(_Meeting[T]):
    """A collective of all ranks.

    Args:
        engine: moves the data.
        ranks: the local ranks.
        world: the number of ranks.
        kind: the collective's name.
        operands: one operand, or the one that is read and the one that is written.
        op: the reduction; empty for none.
        root: the root's rank; 0 if there is none.
        draw: returns the key of a local rank's next meeting.

    Raises:
        ValueError: operands do not fit one another, or have no such reduction.
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
        columns = [operand.buffers(ranks, kind) for operand in operands]  # by operand, then by local rank
        for x, into in zip(columns[0], columns[-1], strict=True):  # one and the same if there is one operand
            _check(kind, x, into, world, op)
            engine.check(x.dtype, op)
        if len({(x.dtype, x.elements) for x in columns[0]}) > 1:
            elements = {rank: f"{x.dtype}[{x.elements}]" for rank, x in zip(ranks, columns[0], strict=True)}
            raise ArgumentError(
                f"{kind}: x is {words_by_rank(elements)}; expected one dtype and one number of elements"
            )
        arguments = [operand.argument for operand in operands]
        super().__init__(engine, arguments[0] if len(arguments) == 1 else cast("T", tuple(arguments)))
        seats: list[tuple[int, Seat]] = []
        uses: list[Use] = []
        for i, rank in enumerate(ranks):
            seats.append((rank, _seat(rank, kind, columns[0][i], columns[-1][i], op, root, self.place)))
            suffix = f" of rank {rank}" if len(ranks) > 1 else ""
            for operand, column in zip(operands, columns, strict=True):
                buffer = column[i]
                uses.append(
                    Use(operand.name + suffix, buffer.storage, operand.is_written(rank), buffer.start, buffer.stop)
                )
        self._parts = lambda: [(draw(rank), seat) for rank, seat in seats]
        self._uses = tuple(uses)
        self.lend(*uses)

    def label(self) -> str:
        return self._kind


class Message(_Meeting[T]):
    """One half of a message: a `send`, or its `recv`."""

    __slots__ = ("_kind",)

    def __init__(self, engine: Engine, rank: int, kind: str, x: T, sender: int, receiver: int, draw: Draw) -> None:
        self._kind = kind
        buffer = buffer_of(x, f"{kind}: argument 'x'", write=rank == receiver)
        super().__init__(engine, x)
        seat = _seat(rank, "message", buffer, buffer, "", sender, self.place, method=kind)
        seat = replace(seat, peer=receiver if rank == sender else sender)
        self._parts = lambda: [(draw(rank), seat)]
        self._uses = (Use("x", buffer.storage, rank == receiver, buffer.start, buffer.stop),)
        self.lend(*self._uses)

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


def _enqueue(engine: Engine, stream: Stream, parts: Parts, uses: tuple[Use, ...]) -> None:
    """Enqueue a call behind other uses of its operands.

    It is enqueued even if earlier work on an operand is known to have failed: it then fails on all ranks. If it were
    not enqueued, the other ranks' calls would meet this rank's next call, which belongs to a later step.
    """
    storages = [(cast("Storage", use.storage), use.write) for use in uses]
    failure = None
    if stream.recorder is None:  # else each launch of the graph looks at its operands itself
        failure = next((storage.error for storage, _ in storages if storage.error is not None), None)
    if failure is not None:  # ahead of the waits, which would raise it as another operation's failure
        stream.driver.check_behind(partial(raise_again, without_traceback(failure)))
    for storage, write in storages:
        storage.use(stream, write=write, peer=True, failed=True)  # `peer`: the stream may be of another device
    engine.enqueue(stream, parts, failure)


def _check(kind: str, x: Buffer, into: Buffer, world: int, op: str) -> None:
    if op and (why := why_unsupported(x.dtype, op)):
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


def _seat(rank: int, kind: str, x: Buffer, into: Buffer, op: str, root: int, place: Place, *, method: str = "") -> Seat:
    call = _call(
        method or kind, kind, x.dtype, x.elements, op, root if kind in ("reduce", "broadcast") else None, place
    )
    return Seat(rank, call, op, root, x.dtype, x.address, x.elements, into.address, into.elements)


@functools.lru_cache(maxsize=256)  # loops repeat calls, and to write the words of a call takes a while
def _call(method: str, kind: str, dtype: np.dtype[Any], count: int, op: str, root: int | None, place: Place) -> Call:
    details = [f"{dtype}[{count}]"]
    if op:
        details.append(op)
    if root is not None:
        details.append(f"root={root}")
    arguments = f"({', '.join(details)})"
    return Call(kind, kind + arguments, f"{method}{arguments} at {format_site(place)}")
