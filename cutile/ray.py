# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (Ray's types do not know what its decorators make)
"""Ranks in the processes of a Ray cluster. Needs Ray: `pip install 'cutile[ray]'`.

    from cutile.ray import Workers

    def train(rank, steps):                     # the same program on each; `rank` is its Communicator
        ...
        rank.all_reduce(gradient, op="avg").sync()
        return loss

    with Workers(4) as workers:                 # a GPU for each, where the cluster has so many; else the CPU
        losses = workers.run(train, 100)

Ray places the processes, and passes programs and results. Collectives among the processes are those of
`cuda_async.collective`. Tensors among arguments and results pass through Ray's shared memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuda_async import Device
from cuda_async.collective import CollectiveError, Communicator
from cuda_async.errors import LaunchError
from cutile.errors import ArgumentError
from cutile.host import api
from cutile.host.tensor import Tensor, TensorView

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ("Workers",)

LIMIT_S = 60.0
"""Seconds that ranks wait for one another, and for processes to be placed, by default."""


class Workers:
    """A process for each rank of one communicator, placed by Ray.

    Ray places them on as few machines as it can.

    Starts Ray on this machine if it does not run yet. Ranks meet at an address of rank 0's machine, which Ray brings
    to the others. Data pass through NCCL between GPUs, else through memory on one machine and sockets between several.

    Args:
        world: the number of ranks.
        gpus: whether each rank has a GPU of its own; None for GPUs if the cluster has enough, in use or not.
        limit_s: seconds to wait for processes, and for the others in each collective.

    Raises:
        ValueError: `world` is not positive.
        CollectiveError: the cluster has no room for them all within the limit.
        ray.exceptions.RayActorError: a process ended as it started, as where its machine has no cutile.
        LaunchError: Ray is not installed.

    Example:
        >>> from cutile.ray import Workers
        >>> def add(rank):
        ...     from cutile import api
        ...     x = api.full(float(rank.rank), (4,)).sync()
        ...     return rank.all_reduce(x).then(lambda x: x.to_numpy()).sync()
        >>> with Workers(2) as workers:
        ...     workers.run(add)[0]
        array([1., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, world: int, *, gpus: bool | None = None, limit_s: float = LIMIT_S) -> None:
        if world < 1:
            raise ArgumentError(f"world: expected 1 or more, got {world}")
        self._ours = not _ray().is_initialized()
        self.world = world
        self._limit_s = limit_s
        self._is_closed = False
        try:  # around `init`, too: if Ctrl-C comes while Ray's processes start, they are ended
            if self._ours:
                # The dashboard is a server of its own; programs that want it start Ray themselves.
                _ray().init(include_dashboard=False)
            self.gpus = _ray().cluster_resources().get("GPU", 0) >= world if gpus is None else gpus
            _share_tensors()
            self._start()
        except BaseException:
            if self._ours:  # the caller has no object that it could close
                _ray().shutdown()
            raise

    def _start(self) -> None:
        need: dict[str, float] = {"CPU": 1.0, **({"GPU": 1.0} if self.gpus else {})}
        self._actors: list[Any] = []
        self._place: Any = None
        try:
            self._place = _ray("ray.util.placement_group").placement_group([need] * self.world, strategy="PACK")
            self._join(need)
        except BaseException:  # without this, the cluster would keep the place until the caller's program ends
            self._stop()
            raise

    def _join(self, need: dict[str, float]) -> None:
        """Start a process for each rank in its place, and have them join.

        Args:
            need: the resources of one process.

        Raises:
            CollectiveError: the cluster has no room for them, or they did not join.
        """
        if not self._place.wait(self._limit_s):
            raise CollectiveError(
                f"the cluster had no room for {self.world} processes with {need} each within "
                f"{self._limit_s:g} s; ask for fewer ranks, or start Ray with more: ray.init(num_cpus={self.world})"
            )
        where = _ray("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy(placement_group=self._place)
        actor = (
            _ray()
            .remote(_Worker)
            # Not restarted by Ray: the new process would have no communicator. `renew` starts all anew.
            .options(num_cpus=1, num_gpus=int(self.gpus), scheduling_strategy=where, max_restarts=0)
        )
        for rank in range(self.world):  # no comprehension: if a later actor fails, `_stop` has to end the earlier ones
            self._actors.append(actor.remote(rank, self.world, self.gpus, self._limit_s))
        name = _ray().get(self._actors[0].unique_id.remote())
        _ray().get([worker.join.remote(name) for worker in self._actors])

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a program on every rank; return what each returns, in order.

        Args:
            function: called as `function(rank, *arguments)`, with the rank's `Communicator`; its device is the default
                one.
            arguments: the same for all. Arrays and tensors lie in shared memory once.

        Raises:
            CollectiveError: a process died, or ranks did not agree: `renew()` forms the group anew. Or there are no
                processes.
            Exception: the program's own error. If several ranks have one, the lowest rank's.

        Ctrl-C ends the wait alone: the programs go on until `renew()` or `close()`.
        """
        if not self._actors:
            why = "the workers were closed" if self._is_closed else "renew() failed, and may be called again"
            raise CollectiveError(f"there are no processes to run a program: {why}")
        shared = [_ray().put(argument) for argument in arguments]
        refs = [actor.run.remote(function, *shared) for actor in self._actors]
        results: list[Any] = []
        failures: list[tuple[int, Exception]] = []
        for rank, ref in enumerate(refs):
            try:
                results.append(_ray().get(ref))
            except Exception as error:  # go on: the rank that failed first may come later
                failures.append((rank, error))
        if failures:
            raise self._cause(failures)
        return results

    def _cause(self, failures: list[tuple[int, Exception]]) -> Exception:
        for rank, error in failures:
            if isinstance(error, _ray().exceptions.RayActorError):
                cause: Exception = CollectiveError(f"the process of rank {rank} died; renew() forms the group anew")
                cause.__cause__ = error
                return cause
        # A CollectiveError most often reports the failure of another rank, whose own error says why.
        return next((error for _, error in failures if not isinstance(error, CollectiveError)), failures[0][1])

    def renew(self) -> None:
        """End all processes and start new ones, after a failure.

        Programs resume from their files on disk.

        Raises as `Workers`; CollectiveError, too, if the workers were closed.
        """
        if self._is_closed:
            raise CollectiveError(f"the workers were closed; make new ones: Workers({self.world})")
        self._stop()
        self._start()

    def _stop(self) -> None:
        try:
            for actor in self._actors:
                _ray().kill(actor)
        finally:
            if self._place is not None:
                _ray("ray.util.placement_group").remove_placement_group(self._place)  # with all processes in it
            self._actors, self._place = [], None

    def close(self) -> None:
        """End the processes, and Ray on this machine if it was started here.

        It may be repeated.
        """
        self._is_closed = True
        try:
            self._stop()
        finally:
            if self._ours:
                _ray().shutdown()
                self._ours = False  # the next Ray that runs is somebody else's

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Worker:
    """The actor of one rank's process."""

    def __init__(self, rank: int, world: int, gpu: bool, limit_s: float) -> None:
        self._rank, self._world, self._limit_s = rank, world, limit_s
        # Ray lets each process see its own GPU alone, as the first.
        self._device = Device(0) if gpu else Device.host()
        self._communicator: Communicator | None = None
        _share_tensors()

    def unique_id(self) -> str:
        return Communicator.unique_id(_ray("ray.util").get_node_ip_address())

    def join(self, unique_id: str) -> None:
        self._communicator = Communicator.join(
            self._rank, self._world, unique_id, device=self._device, limit_s=self._limit_s
        )

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        assert self._communicator is not None
        try:
            with self._device:
                return function(self._communicator, *arguments)
        except CollectiveError:  # a call of the communicator failed, as it does on the other ranks
            raise
        except BaseException as error:  # the other ranks would wait for this one
            self._communicator.abort(f"{type(error).__name__}: {error}")
            raise


def _ray(module: str = "ray") -> Any:
    """Ray, imported when it is first used.

    Raises:
        LaunchError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LaunchError(f"cutile.ray needs Ray, which is not there ({error}): pip install 'cutile[ray]'") from error


def _share_tensors() -> None:
    """Let tensors pass between processes, as arrays in Ray's shared memory.

    The dtype goes along: NumPy has none of its own for tf32 and f4e2m1fnx2.
    """
    for kind in (Tensor, TensorView):
        _ray("ray.util").register_serializer(
            kind,
            serializer=lambda tensor: (tensor.to_numpy().sync(), tensor.dtype.name),
            deserializer=lambda content: api.from_numpy(*content).sync(),
        )
