"""`Communicator`: ranks that work together, and their collectives as operations.

    ranks = Communicator.of([Device.host()] * 4)       # four ranks of one process
    ranks.all_reduce([a, b, c, d]).sync()              # one operand for each
    ranks[2].all_reduce(c)                             # the part of rank 2, in a program of its own

    rank = Communicator.join(0, 4, unique_id)          # a process for each rank
    await rank.all_reduce(a)

A collective is an operation like a kernel's launch: built lazily, with its operands lent to it, ordered behind other
uses of their memory, awaitable, part of `then`, `zip` and graphs. It yields its operands. Each rank must call the same
collectives in the same order. If they do not, the error says which rank called what.
"""

from __future__ import annotations

import itertools
import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cuda_async.collective.board import Key
from cuda_async.collective.engine import Engine
from cuda_async.collective.network import Network
from cuda_async.collective.operation import Barrier, Collective, Message, Operand
from cuda_async.collective.semantics import REDUCTIONS
from cuda_async.config import process_of_launcher
from cuda_async.core.device import Device, as_device
from cuda_async.driver.registry import ACCELERATOR
from cuda_async.errors import ArgumentError, ArgumentTypeError, LaunchError, as_text

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ("Communicator",)

T = TypeVar("T")

LIMIT_S = 60.0
"""Seconds that the first rank of a collective waits for the last one, by default."""

_YEAR_S = 365.0 * 24 * 3600

MAX_CTAS = 32
"""Thread blocks that a kernel of NCCL has at most (`ncclConfig_t`, maxCTAs)."""


class Communicator:
    """Ranks that work together.

    Made by `of`, `join` and indexing, never by its constructor.

    With one local rank an operand is a tensor or `Buffer`, or a list of one. With several it is a list, one for each.

    Attributes:
        world: the number of ranks.
        ranks: the local ranks, in order.
        devices: the devices of the local ranks.
        max_ctas: thread blocks that a collective of GPUs may take; None if NCCL chooses.

    Example:
        >>> import numpy as np
        >>> from cuda_async import Device, zip
        >>> from cuda_async.collective import Buffer, Communicator
        >>> with Device.host() as cpu, Communicator.of([cpu, cpu]) as ranks:
        ...     parts = zip(*(Buffer.put(np.full(3, n, np.int32)) for n in (1, 20)))
        ...     parts.then(ranks.all_reduce).then(lambda done: done[0].get()).sync()
        array([21, 21, 21], dtype=int32)
    """

    def __init__(
        self,
        engine: Engine,
        ranks: Sequence[int],
        devices: Sequence[Device],
        numbers: _Numbers,
        max_ctas: int | None = None,
    ) -> None:
        self._engine = engine
        self._numbers = numbers
        self.max_ctas = max_ctas
        self.world = engine.world
        self.ranks = tuple(ranks)
        self.devices = tuple(devices)

    @classmethod
    def of(
        cls,
        devices: Sequence[Device | int | str],
        *,
        limit_s: float | None = LIMIT_S,
        network: Network | None = None,
        max_ctas: int | None = None,
    ) -> Communicator:
        """Make all ranks of a communicator in this process: rank `i` is on `devices[i]`.

        Args:
            devices: devices of one kind, or their names such as `"cuda:1"`; the CPU may be given any number of times.
            limit_s: how long the first rank of a collective waits for the last, in seconds; None for ever.
            network: how long collectives take between simulated devices; refused for other devices.
            max_ctas: as for `join`.

        Raises:
            ValueError: there are no devices, or they are of different kinds; `limit_s` or `max_ctas` is out of range.
            LaunchError: devices of this kind have no collectives.
        """
        if isinstance(devices, Device | str) or not isinstance(devices, Iterable):
            remedy = f"write [{devices!r}]" if isinstance(devices, Device | str) else 'such as ["cuda:0", "cuda:1"]'
            raise ArgumentTypeError(f"devices: expected a sequence of devices, got {as_text(devices)}; {remedy}")
        limit_s = _checked_limit(limit_s)
        devices = tuple(_named(device, "devices") for device in devices)
        kinds = sorted({device.kind for device in devices})
        if len(kinds) != 1:
            raise ArgumentError(f"devices: expected one or more of one kind, got {', '.join(kinds) or 'none'}")
        if network is not None and kinds != ["sim"]:
            raise ArgumentError(f"network: only simulated devices have one, these are of kind {kinds[0]!r}")
        _check_max_ctas(max_ctas)
        engine = _local_engine(devices, limit_s, network, max_ctas)
        return cls(engine, range(len(devices)), devices, _Numbers(), max_ctas)

    @classmethod
    def join(
        cls,
        rank: int | None = None,
        world: int | None = None,
        unique_id: str | None = None,
        *,
        device: Device | int | str | None = None,
        limit_s: float | None = LIMIT_S,
        max_ctas: int | None = None,
    ) -> Communicator:
        """Take one rank, among processes of this machine or of several.

        Returns when all ranks have joined. Without arguments the rank is the one that a launcher such as `torchrun`
        gave this process: `RANK`, `WORLD_SIZE`, and the unique id `CUDA_ASYNC_UNIQUE_ID`. Without that variable ranks
        meet at `MASTER_ADDR`, at the port after `MASTER_PORT`.

        Args:
            rank: from 0 to `world - 1`.
            world: the number of ranks.
            unique_id: what `Communicator.unique_id` returned in one of the processes.
            device: the rank's device, or its name: a GPU, with NCCL, or the CPU, which is the default.
            limit_s: how long to wait for the others, here and in each collective, in seconds; None for ever.
            max_ctas: thread blocks, and so multiprocessors, that a collective of GPUs may take, from 1 to 32; None
                leaves it to NCCL. The others are left to kernels on other streams. It must be the same on all ranks.

        Raises:
            ValueError: the rank is none of `world`; only some of rank, world and unique id are given; a variable of the
                launcher is missing; `limit_s` or `max_ctas` is out of range.
            CollectiveError: the others did not come, or one took the same rank.
            LaunchError: the device has no collectives.
        """
        from cuda_async.collective.processes import ProcessEngine

        if rank is None and world is None and unique_id is None:
            rank, world, unique_id = _of_launcher()
        if rank is None or world is None or unique_id is None:
            raise ArgumentError(
                f"join: expected a rank, the number of ranks and a unique_id, got {rank!r}, {world!r} and "
                f"{unique_id!r}; or none of them, for those that a launcher gave this process"
            )
        rank, world = _whole_number("rank", rank), _whole_number("world", world)
        if not 0 <= rank < world:
            raise ArgumentError(f"rank: expected 0 to {world - 1}, got {rank}")
        if not isinstance(cast("object", unique_id), str):
            raise ArgumentTypeError(f"unique_id: expected text from Communicator.unique_id(), got {unique_id!r}")
        limit_s = _checked_limit(limit_s)
        _check_max_ctas(max_ctas)
        device = Device.host() if device is None else _named(device, "device")
        engine: Engine
        if device.kind == ACCELERATOR:
            from cuda_async.collective.nccl import load_nccl
            from cuda_async.collective.nccl_engine import NcclEngine

            engine = NcclEngine.join(rank, world, unique_id, device, limit_s, load_nccl(), max_ctas)
        elif device.kind == "host":
            engine = ProcessEngine(rank, world, unique_id, limit_s)
        else:
            raise LaunchError(f"join: {device} has no processes beside it; pass Device.host(), or Device(0) for a GPU")
        return cls(engine, (rank,), (device,), _Numbers(), max_ctas)

    @staticmethod
    def unique_id(host: str | None = None) -> str:
        """Make a name under which ranks find one another; pass it to each process.

        A process that knows the name can join.

        Args:
            host: if ranks run on several machines, the name or address of this one, on which rank 0 must run. None if
                all ranks run on this machine.

        Raises:
            ValueError: nothing can listen at `host`.
        """
        from cuda_async.collective.transport import Address

        return Address.fresh(host)

    # -- ranks ---------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The only local rank. Raises ValueError if there are several."""
        if len(self.ranks) != 1:
            raise ArgumentError(f"{self!r} has several local ranks; communicator[i] is that of rank i")
        return self.ranks[0]

    def __getitem__(self, rank: int) -> Communicator:
        """The communicator of one local rank, for a program of that rank alone.

        Raises:
            IndexError: the rank is not a local one.
        """
        if rank not in self.ranks:
            raise IndexError(f"rank {rank} is not among the local ranks {self.ranks}")
        place = self.ranks.index(rank)
        return Communicator(self._engine, (rank,), (self.devices[place],), self._numbers, self.max_ctas)

    def __len__(self) -> int:
        """The number of local ranks."""
        return len(self.ranks)

    def __repr__(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        return f"<Communicator rank{'s' if len(self.ranks) > 1 else ''} {ranks} of {self.world}>"

    # -- collectives --------------------------------------------------------------------------

    def all_reduce(self, x: T, *, op: str = "sum") -> Collective[T]:
        """Every rank's `x` becomes the sum, by elements, of all ranks' `x`. Yields `x`.

        Args:
            x: the elements, of the same dtype and number on each rank.
            op: `sum`, `prod`, `min`, `max` or `avg`. On the CPU the ranks are added up in their order, so all have the
                same bits. On GPUs NCCL chooses the order.

        Raises:
            ValueError: there is no such reduction, or not for this dtype.
        """
        return self._reduction("all_reduce", [Operand("x", x, writes=True)], op)

    def reduce(self, x: T, *, root: int = 0, op: str = "sum") -> Collective[T]:
        """`x` of the root becomes the sum of every rank's `x`; on other ranks it stays.

        Yields `x`. Arguments as for `all_reduce`.
        """
        root = self._checked_rank("root", root)
        return self._reduction("reduce", [Operand("x", x, writes=root)], op, root)

    def broadcast(self, x: T, *, root: int = 0) -> Collective[T]:
        """Every rank's `x` becomes the root's. Yields `x`."""
        root = self._checked_rank("root", root)
        return self._call("broadcast", [Operand("x", x, writes=True)], root=root)

    def all_gather(self, x: T, into: T) -> Collective[tuple[T, T]]:
        """`into` becomes every rank's `x`, one behind the other. Yields both.

        Raises:
            ValueError: `into` does not have `world` times as many elements.
        """
        return self._call("all_gather", [Operand("x", x), Operand("into", into, writes=True)])

    def reduce_scatter(self, x: T, into: T, *, op: str = "sum") -> Collective[tuple[T, T]]:
        """`into` becomes this rank's part of the sum of all ranks' `x`.

        Yields both. Reductions as for `all_reduce`.

        Raises:
            ValueError: `x` does not have `world` times as many elements as `into`.
        """
        return self._reduction("reduce_scatter", [Operand("x", x), Operand("into", into, writes=True)], op)

    def all_to_all(self, x: T, into: T) -> Collective[tuple[T, T]]:
        """Send part `r` of `x` to rank `r`, for all ranks.

        `into` becomes the received parts, in the order of ranks. Yields both.

        Raises:
            ValueError: they have different sizes, or the size is no multiple of `world`.
        """
        return self._call("all_to_all", [Operand("x", x), Operand("into", into, writes=True)])

    def send(self, x: T, *, to: int) -> Message[T]:
        """Send `x` to another rank, which calls `recv`.

        Yields `x`. Messages of a pair arrive in their order.

        Raises:
            ValueError: `to` is no other rank, or there are several local ranks.
        """
        return self._message("send", x, self.rank, self._checked_rank("to", to))

    def recv(self, x: T, *, source: int) -> Message[T]:
        """`x` becomes what another rank sends. Yields `x`. Raises as `send`."""
        return self._message("recv", x, self._checked_rank("source", source), self.rank)

    def barrier(self) -> Barrier:
        """Wait, on the device, until every rank has called `barrier`."""
        return Barrier(self._engine, self.ranks, self._draw)

    def _reduction(self, kind: str, operands: list[Operand], op: str, root: int = 0) -> Any:
        if not isinstance(cast("object", op), str) or op not in REDUCTIONS:
            raise ArgumentError(f"{kind}: op {op!r}; expected one of {', '.join(REDUCTIONS)}")
        return self._call(kind, operands, op=op, root=root)

    def _call(self, kind: str, operands: list[Operand], *, op: str = "", root: int = 0) -> Any:
        ranks, world, draw = self.ranks, self.world, self._draw
        collective: Collective[Any] = Collective(self._engine, ranks, world, kind, operands, op, root, draw)
        return collective

    def _message(self, kind: str, x: T, sender: int, receiver: int) -> Message[T]:
        other = receiver if kind == "send" else sender
        if other == self.rank:
            raise ArgumentError(f"{kind}: rank {other} would send to itself")

        def draw(rank: int) -> Key:
            return sender, receiver, self._numbers.next(rank, sender, receiver)

        return Message(self._engine, self.rank, kind, x, sender, receiver, draw)

    def _checked_rank(self, name: str, rank: int) -> int:
        try:
            number = operator.index(rank)
        except TypeError:
            number = -1  # refused below, with the others
        if not 0 <= number < self.world:
            raise ArgumentError(f"{name}: expected a rank from 0 to {self.world - 1}, got {rank!r}")
        return number

    def _draw(self, rank: int) -> Key:
        """The key of the next meeting of all ranks, for a local rank."""
        return -1, -1, self._numbers.next(rank, -1, -1)

    # -- its end ------------------------------------------------------------------------------

    def abort(self, why: str = "a rank called abort()") -> None:
        """End all waiting collectives and later ones with `CollectiveError`, on all ranks."""
        self._engine.abort(why)

    def close(self) -> None:
        """Free the communicator's resources, on all local ranks.

        Waiting collectives end with an error.
        """
        self._engine.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Numbers:
    """Counters of each local rank's calls; the numbers are part of meetings' keys.

    Several threads may count: `setdefault` is atomic, and so is `next` of a counter.
    """

    def __init__(self) -> None:
        self._counters: dict[tuple[int, int, int], itertools.count[int]] = {}

    def next(self, rank: int, sender: int, receiver: int) -> int:
        """The next number of a rank's messages; of its collectives with (-1, -1)."""
        return next(self._counters.setdefault((rank, sender, receiver), itertools.count()))


def _whole_number(name: str, number: int) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise ArgumentTypeError(f"{name}: expected a whole number, got {number!r}") from None


def _checked_limit(limit_s: float | None) -> float | None:
    """The limit in seconds; None if there is none, or it is too far off to come."""
    if limit_s is None:
        return None
    if isinstance(limit_s, bool) or not isinstance(cast("object", limit_s), numbers.Real) or not limit_s > 0:
        raise ArgumentError(f"limit_s: expected seconds, more than 0, or None for no limit, got {limit_s!r}")
    # A limit of more than a year is none: threads cannot wait for arbitrarily many seconds.
    return None if limit_s > _YEAR_S else float(limit_s)


def _check_max_ctas(max_ctas: int | None) -> None:
    if max_ctas is None:
        return
    if not isinstance(cast("object", max_ctas), numbers.Integral) or not 1 <= max_ctas <= MAX_CTAS:
        raise ArgumentError(f"max_ctas: expected 1 to {MAX_CTAS} thread blocks, or None, got {max_ctas!r}")


def _of_launcher() -> tuple[int, int, str]:
    """The rank, the number of ranks and the unique id, from the environment."""
    from cuda_async.collective.transport import Address

    process = process_of_launcher()
    if process.unique_id:
        return process.rank, process.world, process.unique_id
    # Not the launcher's port itself: the launcher, or torch.distributed, opens torch's store there.
    port = process.port + 1 if process.port < 65535 else process.port - 1
    words = (str(process.world), process.run)
    return process.rank, process.world, Address.of_launcher(process.host, port, *words)


def _named(which: Device | int | str, argument: str) -> Device:
    """The device that an argument names."""
    try:
        return as_device(which)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{argument}: {error}") from None


def _local_engine(
    devices: Sequence[Device], limit_s: float | None, network: Network | None, max_ctas: int | None
) -> Engine:
    from cuda_async.collective.local import LocalEngine
    from cuda_async.driver.checked import CheckedDriver
    from cuda_async.driver.sim import SimDriver

    if devices[0].kind == "host":
        return LocalEngine(len(devices), limit_s)
    if devices[0].kind == ACCELERATOR:
        from cuda_async.collective.nccl import load_nccl
        from cuda_async.collective.nccl_engine import NcclEngine

        return NcclEngine.of(devices, load_nccl(), max_ctas)
    # One process simulates all devices, and they must have one clock.
    drivers = [device.driver.inner if isinstance(device.driver, CheckedDriver) else device.driver for device in devices]
    if not all(isinstance(driver, SimDriver) for driver in drivers):
        raise LaunchError(f"collectives of {devices[0]}: expected GPUs, the CPU, or devices with a SimDriver")
    executors = {driver.executor for driver in drivers if isinstance(driver, SimDriver)}
    if len(executors) != 1:
        raise ArgumentError("devices: simulated devices of one machine are made with SimDriver(beside=...)")
    return LocalEngine(len(devices), limit_s, network or Network(), executors.pop())
