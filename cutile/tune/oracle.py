"""Who says what a configuration is worth.

Its operation, built, compiled, checked and timed on a device.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from cuda_async import DeviceLostError, DeviceOp, Stream, Use
from cuda_async.core.operation import whole
from cutile.bench import DEFAULT_BENCH, BenchOptions, Measurement, Paired, do_bench, do_bench_paired
from cutile.compile.ahead import Builders
from cutile.compile.driver import Request
from cutile.errors import ArgumentTypeError
from cutile.tune.log import Invalid, Stage
from cutile.tune.memory import Backup, written_by
from cutile.tune.record import Provenance, submitted
from cutile.tune.space import Config

Candidate = Callable[[Config], DeviceOp[Any]]
Judge = Callable[[Any], object]
Poison = Callable[[], object]


class WrongResultError(AssertionError):
    """What a configuration computed was refused by the user's check."""


class InvalidError(Exception):
    """A configuration cannot be used; carries why.

    Attributes:
        outcome: the reason.
    """

    def __init__(self, outcome: Invalid) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Oracle(Protocol):
    """What a search asks. The device is one; tests, and models, have theirs."""

    def look(self, config: Config) -> str:
        """What would be timed, as `Trial.subject`.

        Raises InvalidError where there is nothing to time.
        """
        ...

    def prepare(self, configs: Sequence[Config]) -> Sequence[Invalid | None]:
        """Compile several at once; say for each why it cannot be used, if so."""
        ...

    def measure(self, config: Config) -> Measurement:
        """How long it takes.

        Raises InvalidError where it fails, or computes something else.
        """
        ...

    def pair(self, first: Config, second: Config) -> Paired:
        """Two of them in turn. Raises InvalidError where one fails."""
        ...


@dataclass
class DeviceOracle:
    """Times operations on a stream.

    Attributes:
        candidate: makes the operation of a configuration; called anew for each run.
        stream: where they run.
        bench: how long a measurement takes.
        builders: what compiles ahead.
        judge: looks at what the operation yields, after one run and before it is timed; false, or an AssertionError,
            refuses it.
        poison: spoils the outputs before that run; what it returns is run, if it is an operation.
        backup: keeps what operations write, as it was before the first of them ran, and puts it back before each
            configuration is tried.
    """

    candidate: Candidate
    stream: Stream
    builders: Builders
    bench: BenchOptions = DEFAULT_BENCH
    judge: Judge | None = None
    poison: Poison | None = None
    backup: Backup | None = None
    _seen: dict[Config, Provenance] = field(default_factory=dict[Config, Provenance], init=False)

    def _build(self, config: Config) -> DeviceOp[Any]:
        op: object = self.candidate(config)
        if isinstance(op, DeviceOp):
            return op  # pyright: ignore[reportUnknownVariableType]
        raise ArgumentTypeError(f"tuning takes a function from a Config to a DeviceOp; this one returned {op!r}")

    def _at(self, stage: Stage, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except InvalidError:
            raise  # an inner stage
        except Exception as error:
            if isinstance(error, DeviceLostError):
                stage = "lost"
            elif isinstance(error, WrongResultError):
                stage = "check"
            traceback.clear_frames(error.__traceback__)  # they hold the arguments, which others are to have
            raise InvalidError(Invalid.of(error, stage)) from error

    def provenance(self, config: Config) -> Provenance:
        """The facts of what a configuration's operation is.

        Raises InvalidError where it does not compile.
        """
        found = self._seen.get(config)
        if found is None:
            found = self._seen[config] = self._provenance(config)
        return found

    def _provenance(self, config: Config) -> Provenance:
        def make() -> DeviceOp[Any]:
            return self._at("build", lambda: self._build(config))  # it fails at a stage of its own

        return self._at("compile", lambda: Provenance.of(make, self.stream.device))

    def look(self, config: Config) -> str:
        """The digest of its facts, of how it is timed and of whether it is checked.

        See `Oracle`.
        """
        found = self.provenance(config).subject
        caches = {None: "", True: " cold", False: " warm"}[self.bench.clear_l2]
        return f"{found}{caches}{' checked' if self.judge is not None else ''}"

    def prepare(self, configs: Sequence[Config]) -> list[Invalid | None]:
        """Build them all, compile in several processes; see `Oracle`."""
        outcomes: list[Invalid | None] = [None] * len(configs)
        requests: list[tuple[int, Request]] = []
        for number, config in enumerate(configs):
            try:
                requests += [(number, each) for each in self._at("build", lambda config=config: self._requests(config))]
            except InvalidError as error:
                outcomes[number] = error.outcome
        for (number, _), error in zip(requests, self.builders.compile([each for _, each in requests]), strict=True):
            if error is not None:
                outcomes[number] = Invalid.of(error, "compile")
        return outcomes

    def _requests(self, config: Config) -> list[Request]:
        launches, _ = submitted(lambda: self._build(config), self.stream.device)
        requests = (launch.request() for launch in launches)
        return [request for request in requests if request is not None]

    def measure(self, config: Config) -> Measurement:
        """Run once and check, then time; see `Oracle`."""
        self._try_once(config)
        return self._at("run", lambda: do_bench(lambda: self._build(config), self.bench, stream=self.stream))

    def _try_once(self, config: Config) -> None:
        """Run and check.

        When it returns nothing holds the arguments: partitions end with those who have them.
        """
        self._keep(config)
        if self.backup is not None:
            self._at("run", self.backup.restore)
        self._at("run", self._spoil)  # before the operation is built, which holds its outputs
        op = self._at("build", lambda: self._build(config))
        for prepare in op.preparations(self.stream.device):
            self._at("compile", prepare)
        self._at("run", lambda: self._check(op))

    def _keep(self, config: Config) -> None:
        """Keep what a configuration's operation will write."""
        backup = self.backup
        if backup is not None:
            _, uses = self._at("build", lambda: submitted(lambda: self._build(config), self.stream.device))
            self._at("run", lambda: backup.keep(written_by(uses)))

    def _spoil(self) -> None:
        made = None if self.poison is None else self.poison()
        if isinstance(made, DeviceOp):
            op = cast("DeviceOp[Any]", made)
            if self.backup is not None:
                lent = [Use(*use) for part in whole(op) for lease in part.leases for use in lease.uses if use[2]]
                self.backup.keep(written_by(lent))
            op.sync_on(self.stream)

    def _check(self, op: DeviceOp[Any]) -> None:
        judge, result = self.judge, op.sync_on(self.stream)
        if judge is None:
            return
        try:
            verdict = judge(result)
        except AssertionError as error:
            raise WrongResultError(f"the result is wrong: {error}" if str(error) else "the result is wrong") from error
        if verdict is not None and not verdict:
            raise WrongResultError("the result is wrong")

    def pair(self, first: Config, second: Config) -> Paired:
        """Two of them in turn, A B A B; see `Oracle`."""
        self._keep(first)  # what the log had of them was not run in this process
        self._keep(second)
        one, other = (lambda: self._build(first)), (lambda: self._build(second))
        return self._at("run", lambda: do_bench_paired(one, other, self.bench, stream=self.stream))
