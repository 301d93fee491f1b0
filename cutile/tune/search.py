"""A search, and the oracle that says what a configuration is worth.

For each configuration the search looks up, compiles, measures and logs. Then the two best run off. The oracle builds a
configuration's operation, compiles it, checks its results and times it on a device.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from cuda_async import DeviceLostError, DeviceOp, Stream, Use
from cuda_async.core.operation import whole
from cutile.bench import DEFAULT_BENCH, BenchOptions, Measurement, Paired, do_bench, do_bench_paired
from cutile.compile.ahead import Builders
from cutile.compile.driver import Request
from cutile.errors import ArgumentTypeError, TuningError
from cutile.tune.log import Invalid, Measured, Stage, Trial, TrialLog
from cutile.tune.memory import Backup, written_by
from cutile.tune.record import Provenance, submitted
from cutile.tune.space import Config, Searcher
from cutile.tune.table import Progress, ranked

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


Keep = Callable[[Config], bool]


@dataclass
class Search:
    """One run of a tuner.

    Attributes:
        name: the tuner's name.
        oracle: who is asked what a configuration is worth.
        searcher: who says which comes next.
        log: where trials are written, and those of earlier runs are found.
        keeps: what a configuration has to satisfy to be tried.
        required: configurations that are measured first, and whatever the budget.
        budget_s: seconds after which no further one is begun; None for all the time there is.
        lookahead: how many are compiled before they are measured.
        total: how many there are to try, if that is known.
        progress: told of each trial.
        now: the clock that the budget goes by.
    """

    name: str
    oracle: Oracle
    searcher: Searcher
    log: TrialLog
    keeps: Sequence[Keep] = ()
    required: Sequence[Config] = ()
    budget_s: float | None = None
    lookahead: int = 1
    total: int | None = None
    progress: Progress | None = None
    now: Callable[[], float] = time.monotonic
    trials: dict[Config, Trial] = field(default_factory=dict[Config, Trial])
    out_of_time: bool = False

    def __post_init__(self) -> None:
        self._begin = self.now()

    def run(self) -> None:
        """Try what is required, then what the searcher asks for.

        Raises:
            TuningError: what is required cannot be measured, or a configuration ended the device.
        """
        self._try(self.required, whatever_the_time=True)
        for config in self.required:
            outcome = self.trials[config].outcome
            if isinstance(outcome, Invalid):
                raise TuningError(f"{self.name}: {config} is required and cannot be measured: {outcome.reason}")
        while not self._over():
            configs = self.searcher.ask(self.lookahead)
            if not configs:
                return
            self._try(configs)
        self.out_of_time = True

    def _over(self) -> bool:
        return self.budget_s is not None and self.now() - self._begin >= self.budget_s

    def _try(self, configs: Sequence[Config], *, whatever_the_time: bool = False) -> None:
        fresh: list[tuple[Config, str]] = []
        for config in configs:
            if config in self.trials:
                self.searcher.tell(self.trials[config])
            elif all(keep(config) for keep in self.keeps):
                self._look(config, fresh)
        if not fresh:
            return
        outcomes = self.oracle.prepare([config for config, _ in fresh])
        for (config, subject), refused in zip(fresh, outcomes, strict=True):
            if self._over() and not whatever_the_time:
                return  # the caller asks, too
            outcome = refused if refused is not None else self._measure(config)
            trial = Trial(config, outcome, subject)
            self.log.add(trial)
            self._note(trial)
            if isinstance(outcome, Invalid) and outcome.stage == "lost":
                raise TuningError(
                    f"{self.name}: {config} ended the device, so that nothing more can be measured in this process: "
                    f"{outcome.reason}. Run it again: the log has what was measured, and this one is not tried again"
                )

    def _look(self, config: Config, fresh: list[tuple[Config, str]]) -> None:
        """Take a trial from the log, if it is of the same subject.

        Else it is to be measured.
        """
        try:
            subject = self.oracle.look(config)
        except InvalidError as error:
            trial = Trial(config, error.outcome)
            self.log.add(trial)
            self._note(trial)
            return
        known = self.log.trials.get((config, subject))
        if known is not None and (isinstance(known.outcome, Measured) or known.outcome.stage == "lost"):
            self._note(known)
        else:
            fresh.append((config, subject))  # what was refused before may have been so by chance

    def _measure(self, config: Config) -> Measured | Invalid:
        try:
            return Measured.of(self.oracle.measure(config))
        except InvalidError as error:
            return error.outcome

    def _note(self, trial: Trial) -> None:
        self.trials[trial.config] = trial
        self.searcher.tell(trial)
        if self.progress is not None:
            self.progress(list(self.trials.values()), self.total)

    # -- the winner ---------------------------------------------------------------------------

    def finish(self) -> tuple[Trial, tuple[Trial, ...], Paired | None, list[str]]:
        """The winner, the two that it was found among, their run-off, and remarks.

        Medians that were taken one after the other, or days apart, do not decide between the two best where turns of
        both tell them apart: a GPU drifts by more than what separates them.

        Raises:
            TuningError: nothing could be measured; says why.
        """
        ranking = ranked(list(self.trials.values()))
        if not ranking:
            raise TuningError(self._why_nothing())
        if len(ranking) == 1:
            return ranking[0], (), None, []
        first, second = ranking[:2]
        try:
            paired = self._runoff(first, second)
        except InvalidError as error:
            return first, (first, second), None, [f"the run-off of the two best failed: {error.outcome.line}"]
        if paired is None:
            return first, (first, second), None, ["the budget left no time for a run-off of the two best"]
        beaten = paired.differ and paired.ratio.median < 1
        return (second if beaten else first), (first, second), paired, []

    def _runoff(self, first: Trial, second: Trial) -> Paired | None:
        one, other = ((each.config, each.subject) for each in (first, second))
        known = self.log.runoffs.get((one, other))
        if known is not None and first.resumed and second.resumed:
            return known
        if self._over():
            return None
        paired = self.oracle.pair(first.config, second.config)
        self.log.add_runoff(first, second, paired)
        return paired

    def _why_nothing(self) -> str:
        invalid = [each for each in self.trials.values() if isinstance(each.outcome, Invalid)]
        lines, said = [f"{self.name}: no configuration could be measured"], ""
        if self.out_of_time:
            lines[0] += f"; the budget of {self.budget_s:g} s ended the search"
        if not invalid and not self.out_of_time:
            lines[0] += ": none is left after pruning"
        for trial in invalid[:5]:
            assert isinstance(trial.outcome, Invalid)
            why = f"({trial.outcome.stage}): {trial.outcome.reason}"
            lines.append(f"  {trial.config.id} {'for the same reason' if said == why else why}")
            said = why
        if len(invalid) > 5:
            lines.append(f"  and {len(invalid) - 5} more")
        return "\n".join(lines)
