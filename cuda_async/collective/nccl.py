"""`Nccl`: the functions of NCCL that collectives of GPUs need.

The functions are those of nccl4py's bindings, which load the library (`nvidia-nccl-cu13`). See the NCCL user guide:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from cuda_async.collective.engine import Seat
from cuda_async.config import leave_multicast_off
from cuda_async.driver.interface import DriverStream
from cuda_async.errors import ArgumentError, CollectiveError, LaunchError
from cuda_async.locks import start_thread

if TYPE_CHECKING:
    from cuda_async.core.device import Device

__all__ = ("Command", "Nccl", "element_type", "load_nccl", "open_on", "open_together")

# ncclDataType_t. Bools are bytes of 0 and 1, whose minimum and maximum are `all` and `any`.
_TYPES = {
    "int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
_BYTE_TYPE = _TYPES["uint8"]

_REDUCTIONS = {"": 0, "sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
"""ncclRedOp_t, by the names of `semantics.REDUCTIONS`; calls without a reduction ("") do not pass it on."""

_SUCCESS, _IN_PROGRESS = 0, 7
"""ncclSuccess and ncclInProgress, of ncclResult_t: no failures."""


@functools.cache  # the name of a dtype takes NumPy some microseconds
def element_type(dtype: np.dtype[Any], reduces: bool) -> tuple[int, int]:
    """The ncclDataType_t for a dtype, and how many of them make one element.

    Elements of a dtype that NCCL lacks, or of the other byte order, are moved as bytes. They cannot be reduced.

    Raises:
        ArgumentError: NCCL reduces no elements of this dtype.
    """
    code = _TYPES.get(dtype.name) if dtype.isnative else None  # both byte orders have one name
    if code is not None:
        return code, 1
    if reduces:
        names = ", ".join(name for name in _TYPES if name != "bool")  # nobody would convert numbers to bool
        raise ArgumentError(f"GPUs reduce no elements of {dtype}; expected one of {names}: convert them first")
    return _BYTE_TYPE, dtype.itemsize


Command = tuple[Any, ...]
"""A function of NCCL with its arguments."""


class Nccl:
    """The library.

    Args:
        bindings: the module `nccl.bindings.nccl`, or a fake in tests.
        handle: returns the handle of a driver's stream, which the bindings take.
    """

    def __init__(self, bindings: Any, handle: Callable[[DriverStream], Any] = attrgetter("raw")) -> None:
        self._bindings = bindings
        self._handle = handle

    def new_id(self) -> bytes:
        """A new `ncclUniqueId`, which the ranks of one communicator share."""
        return bytes(self._bindings.get_unique_id())

    def open_all(self, ordinals: Sequence[int]) -> list[Any]:
        """A communicator for each GPU of this process; waits until they are connected."""
        return list(self._bindings.comm_init_all(len(ordinals), list(ordinals)))

    def open_rank(self, world: int, unique_id: bytes, rank: int, max_ctas: int | None = None) -> Any:
        """The communicator of one rank, on the current GPU. Waits for the other ranks.

        Args:
            world: the number of ranks.
            unique_id: the `ncclUniqueId` of all ranks.
            rank: the rank.
            max_ctas: thread blocks that a kernel of NCCL may have; None leaves it to NCCL.
        """
        if max_ctas is None:
            return self._bindings.comm_init_rank(world, bytearray(unique_id), rank)
        config = self._bindings.Config()  # ncclConfig_t
        config.max_ctas = max_ctas
        # By default NCCL's blocks come in clusters of 4, each of which waits for 4 free multiprocessors of one GPC. A
        # kernel that leaves `max_ctas` multiprocessors free leaves them in any GPC.
        config.cga_cluster_size = 0
        return self._bindings.comm_init_rank_config(world, bytearray(unique_id), rank, config.ptr)

    def commands(self, parts: Sequence[tuple[Any, Seat, DriverStream]], world: int) -> list[Command]:
        """The calls of NCCL's functions that enqueue a call of ranks.

        They are one group, in which no part waits for a later one.

        Args:
            parts: for each local rank its communicator, its part, and a stream of its GPU.
            world: the number of ranks.

        Raises:
            ArgumentError: NCCL reduces no elements of a part's dtype.
        """
        ((_, seat, _), *others) = parts
        commands = [command for comm, seat, stream in parts for command in self._commands_of(comm, world, seat, stream)]
        # NCCL makes a group of its own around one function. The commands of several ranks need ours, and so do those of
        # an `all_to_all`, which is many messages. A message gets one too, as in the examples of NCCL's guide.
        if others or seat.call.kind == "all_to_all" or seat.peer is not None:
            commands = [(self._bindings.group_start,), *commands, (self._bindings.group_end,)]
        return commands

    def issue(self, commands: Sequence[Command], results: list[Any]) -> None:
        """Enqueue a call.

        Args:
            commands: the result of the method `commands`.
            results: empty; gets a result for each command. It has all of them if and only if NCCL accepted the call,
                even if Ctrl-C ends this function.

        Raises:
            CollectiveError: NCCL refuses the call, and enqueues none of its commands.
            Exception: the bindings cannot call a command. Those ahead of it may be enqueued; their results are there.
        """
        try:
            # A loop in Python would let a signal handler run between two commands, or between the last command and the
            # note that it was called. This loop is C code from its first command to its last.
            results.extend(starmap(operator.call, commands))
        except BaseException as error:
            # A command after `group_start` failed, and not `group_end` itself: the group is open. Until it is ended,
            # later calls of this thread never begin. NCCL keeps a command's error, and returns it again at the end.
            if 0 < len(results) < len(commands) - 1:
                with contextlib.suppress(self._bindings.NCCLError):
                    self._bindings.group_end()
            if isinstance(error, self._bindings.NCCLError):
                raise CollectiveError(f"NCCL refuses the call: {error}") from error
            raise

    def _commands_of(self, comm: Any, world: int, seat: Seat, stream: DriverStream) -> list[Command]:
        """The commands of one rank's part of a call.

        Args:
            comm: the rank's communicator.
            world: the number of ranks.
            seat: the part.
            stream: a stream of the rank's GPU.
        """
        nccl, on = self._bindings, (comm, self._handle(stream))
        code, width = element_type(seat.dtype, bool(seat.op))
        op, count, room = _REDUCTIONS[seat.op], seat.count * width, seat.room * width
        source, target = seat.source, seat.target
        kind = seat.call.kind
        if kind == "all_reduce":
            return [(nccl.all_reduce, source, target, count, code, op, *on)]
        if kind == "reduce":
            return [(nccl.reduce, source, target, count, code, op, seat.root, *on)]
        if kind == "broadcast":
            return [(nccl.broadcast, source, target, count, code, seat.root, *on)]
        if kind == "all_gather":
            return [(nccl.all_gather, source, target, count, code, *on)]
        if kind == "reduce_scatter":
            return [(nccl.reduce_scatter, source, target, room, code, op, *on)]
        if kind == "all_to_all":
            count_per_rank = seat.count // world
            size = count_per_rank * seat.dtype.itemsize
            commands: list[Command] = []
            for rank in range(world):  # within one group, so that a `send` does not wait for its `recv`
                commands.append((nccl.send, source + rank * size, count_per_rank * width, code, rank, *on))
                commands.append((nccl.recv, target + rank * size, count_per_rank * width, code, rank, *on))
            return commands
        if seat.peer is not None:
            # `source` is the buffer of a message on both sides: a `recv` has no operand beside its result.
            transfer = nccl.send if seat.rank == seat.root else nccl.recv
            return [(transfer, source, count, code, seat.peer, *on)]
        raise AssertionError(kind)

    def failure(self, comm: Any) -> str:
        """The asynchronous error of a communicator; empty if there is none.

        It is the error of accepted calls, such as a broken link.
        """
        try:
            code = int(self._bindings.comm_get_async_error(comm))
            return "" if code in (_SUCCESS, _IN_PROGRESS) else str(self._bindings.get_error_string(code))
        except self._bindings.NCCLError as error:  # the question itself is refused: it is no communicator any more
            return str(error)

    def abort(self, comm: Any) -> None:
        """End a communicator and its waiting calls, from any thread. It is freed."""
        self._bindings.comm_abort(comm)

    def free(self, comms: Iterable[Any]) -> None:
        """Abort communicators, each of which may be half made, or lost with its GPU."""
        for comm in comms:
            with contextlib.suppress(Exception):
                self.abort(comm)


def open_on(device: Device, nccl: Nccl, world: int, unique_id: bytes, rank: int, max_ctas: int | None) -> Any:
    """The communicator of a rank on a GPU. Waits for the other ranks."""
    stream = device.new_stream()
    stream.driver.enter()  # makes the GPU the thread's current one, which NCCL takes
    try:
        return nccl.open_rank(world, unique_id, rank, max_ctas)
    finally:
        stream.driver.leave()


def open_together(
    nccl: Nccl,
    opens: Sequence[Callable[[], Any]],
    on_break: Callable[[Callable[[str], None]], None] | None = None,
) -> list[Any]:
    """The communicators that functions open, each on a thread of its own.

    The functions wait for one another.

    Args:
        nccl: the library.
        opens: open a communicator each.
        on_break: takes a function that is called with the reason if a rank of another process cannot open its own.

    Raises:
        Exception: the first error of a function, at once. The other functions may wait in NCCL for ever. Their threads
            do not keep the process from its exit.
        CollectiveError: a rank of another process cannot open its own.
    """
    answers: queue.SimpleQueue[tuple[int, Any, Exception | None]] = queue.SimpleQueue()

    def answer(place: int) -> None:
        try:
            answers.put((place, opens[place](), None))
        except Exception as error:
            answers.put((place, None, error))

    if on_break is not None:
        on_break(lambda why: answers.put((0, None, CollectiveError(why))))
    for place in range(len(opens)):
        start_thread(threading.Thread(target=answer, args=(place,), name="cuda_async-collective-open", daemon=True))
    comms: dict[int, Any] = {}
    try:
        for _ in opens:  # each answers once
            place, comm, error = answers.get()
            if error is not None:
                raise error
            comms[place] = comm
    except BaseException:
        nccl.free(comms.values())
        raise
    return [comms[place] for place in range(len(opens))]


def load_nccl() -> Nccl:
    """Load NCCL.

    NVLink multicast stays off unless the environment asks for it: see `leave_multicast_off`.

    Raises:
        LaunchError: it is not installed.
    """
    leave_multicast_off()
    try:
        return Nccl(importlib.import_module("nccl.bindings.nccl"))
    except (ImportError, RuntimeError) as error:  # RuntimeError: nccl4py is there, and finds no libnccl
        raise LaunchError(
            f"collectives of GPUs need NCCL, which is not there ({error}): pip install 'cutile[distributed]'; ranks "
            "of the CPU, [Device.host()] * n, need nothing"
        ) from error
