"""`Search`: the loop of a tuner. `DeviceOracle`: measures on a device.

The search looks each configuration up in the log, has the oracle compile and measure it, and logs the outcome. At the
end the two fastest are timed in turn (the run-off). The oracle builds a configuration's operation, compiles it, checks
its results and times it.
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
from cutile.tune.log import Invalid, Measured, Stage, Trial, TrialLog, failure_lines
from cutile.tune.memory import Backup, written_by
from cutile.tune.record import Provenance, submitted
from cutile.tune.space import Config, Searcher
from cutile.tune.table import Progress, ranked

Candidate = Callable[[Config], DeviceOp[Any]]
Judge = Callable[[Any], object]
Poison = Callable[[], object]


class WrongResultError(AssertionError):
    """The user's check refuses the result of a configuration."""


class InvalidError(Exception):
    """A configuration cannot be used.

    Attributes:
        outcome: the reason.
    """

    def __init__(self, outcome: Invalid) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Oracle(Protocol):
    """Compiles and measures configurations: a device, a model, or a test's fake."""

    def look(self, config: Config) -> str:
        """A digest of the operation that would be timed: `Trial.subject`. Runs nothing.

        Raises InvalidError where the operation cannot be built or compiled.
        """
        ...

    def prepare(self, configs: Sequence[Config]) -> Sequence[Invalid | None]:
        """Compile several at once. For each: why it cannot be used, or None."""
        ...

    def measure(self, config: Config) -> Measurement:
        """Time a configuration.

        Raises InvalidError where it fails, or its result is wrong.
        """
        ...

    def pair(self, first: Config, second: Config) -> Paired:
        """Time two configurations in turn, A B A B. Raises InvalidError where one fails."""
        ...


@dataclass
class DeviceOracle:
    """Times operations on a stream.

    Attributes:
        candidate: makes the operation of a configuration; called anew for each run.
        stream: the stream on which operations run.
        builders: the processes that compile ahead.
        bench: how long a measurement takes.
        judge: checks the operation's result after one run, before it is timed; False or an AssertionError refuses it.
        poison: spoils the outputs before that run. If it returns an operation, that is run.
        backup: keeps the memory that operations write as it was before the first of them ran, and puts it back before
            each configuration is tried.
    """

    candidate: Candidate
    stream: Stream
    builders: Builders
    bench: BenchOptions = DEFAULT_BENCH
    judge: Judge | None = None
    poison: Poison | None = None
    backup: Backup | None = None
    _provenances: dict[Config, Provenance] = field(default_factory=dict[Config, Provenance], init=False)

    def _build(self, config: Config) -> DeviceOp[Any]:
        op: object = self.candidate(config)
        if isinstance(op, DeviceOp):
            return op  # pyright: ignore[reportUnknownVariableType]
        raise ArgumentTypeError(f"tuning takes a function from a Config to a DeviceOp; this one returned {op!r}")

    def _at(self, stage: Stage, action: Callable[[], Any]) -> Any:
        """Call `action`; its error becomes an InvalidError of this stage."""
        try:
            return action()
        except InvalidError:
            raise  # of an inner call, which names its own stage
        except Exception as error:  # whatever a configuration raises, the others are still tried
            if isinstance(error, DeviceLostError):
                stage = "lost"
            elif isinstance(error, WrongResultError):
                stage = "check"
            # The frames hold partitions of the arguments: without this the next configuration could not borrow them.
            traceback.clear_frames(error.__traceback__)
            raise InvalidError(Invalid.of(error, stage)) from error

    def provenance(self, config: Config) -> Provenance:
        """The facts of a configuration's operation.

        Raises InvalidError where it does not compile.
        """
        facts = self._provenances.get(config)
        if facts is None:
            facts = self._provenances[config] = self._provenance(config)
        return facts

    def _provenance(self, config: Config) -> Provenance:
        def make() -> DeviceOp[Any]:
            return self._at("build", lambda: self._build(config))  # an error here is of "build", not of "compile"

        return self._at("compile", lambda: Provenance.of(make, self.stream.device))

    def look(self, config: Config) -> str:
        """A digest of the facts, with the state of caches and the check; see `Oracle`."""
        digest = self.provenance(config).subject
        caches = {None: "", True: " cold", False: " warm"}[self.bench.clear_l2]
        return f"{digest}{caches}{' checked' if self.judge is not None else ''}"

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

        It is a function of its own so that its operation ends with it: the operation holds partitions of the arguments,
        which the timed runs borrow anew.
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
        """Back up the memory that a configuration's operation will write."""
        backup = self.backup
        if backup is not None:
            _, uses = self._at("build", lambda: submitted(lambda: self._build(config), self.stream.device))
            self._at("run", lambda: backup.keep(written_by(uses)))

    def _spoil(self) -> None:
        result = None if self.poison is None else self.poison()
        if isinstance(result, DeviceOp):
            op = cast("DeviceOp[Any]", result)
            if self.backup is not None:
                uses = [Use(*use) for part in whole(op) for lease in part.leases for use in lease.uses]
                self.backup.keep(written_by(uses))
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
        """Time two configurations in turn, A B A B; see `Oracle`."""
        self._keep(first)  # a trial from the log has not run in this process, so that nothing is backed up for it
        self._keep(second)
        make_first, make_second = (lambda: self._build(first)), (lambda: self._build(second))
        return self._at("run", lambda: do_bench_paired(make_first, make_second, self.bench, stream=self.stream))


Keep = Callable[[Config], bool]


@dataclass
class Search:
    """One run of a tuner.

    Attributes:
        name: the tuner's name.
        oracle: compiles and measures configurations.
        searcher: says which configurations are tried next.
        log: has the trials of earlier runs, and gets those of this run.
        keeps: predicates; a configuration is tried if all are true.
        required: configurations that are measured first, whatever the budget.
        budget_s: seconds after which no further configuration is begun; None for no limit.
        lookahead: the number of configurations that are compiled at once, before they are measured.
        total: the number of configurations to try, if that is known.
        progress: called after each trial.
        now: the clock of the budget, in seconds.
        trials: the outcomes so far, in order.
        out_of_time: whether the budget ended the search before all configurations were tried.
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
        """Try the required configurations, then those of the searcher.

        Raises:
            TuningError: a required configuration cannot be measured, or a configuration made the device unusable.
        """
        self._try(self.required, despite_budget=True)
        for config in self.required:
            outcome = self.trials[config].outcome
            if isinstance(outcome, Invalid):
                raise TuningError(f"{self.name}: {config} is required and cannot be measured: {outcome.reason}")
        while not self._over():
            configs = self.searcher.ask(self.lookahead)
            if not configs:
                return
            self._try(configs)
        self.out_of_time = self.total is None or len(self.trials) < self.total

    def _over(self) -> bool:
        return self.budget_s is not None and self.now() - self._begin >= self.budget_s

    def _try(self, configs: Sequence[Config], *, despite_budget: bool = False) -> None:
        """Get a trial of each configuration, from the log or by a measurement.

        The budget may end this early, unless `despite_budget`. Pruned configurations are skipped.
        """
        untried: list[tuple[Config, str]] = []
        for config in configs:
            if config in self.trials:  # it was required, or the searcher asked for it before
                self.searcher.tell(self.trials[config])
            elif all(keep(config) for keep in self.keeps):
                self._look(config, untried)
        if not untried:
            return
        outcomes = self.oracle.prepare([config for config, _ in untried])
        for (config, subject), failure in zip(untried, outcomes, strict=True):
            if self._over() and not despite_budget:
                return  # `run` looks at the clock too, and ends
            outcome = failure if failure is not None else self._measure(config)
            trial = Trial(config, outcome, subject)
            self.log.add(trial)
            self._note(trial)
            if isinstance(outcome, Invalid) and outcome.stage == "lost":
                raise TuningError(
                    f"{self.name}: {config} ended the device, so that nothing more can be measured in this process: "
                    f"{outcome.reason}. Run it again: the log has what was measured, and this one is not tried again"
                )

    def _look(self, config: Config, untried: list[tuple[Config, str]]) -> None:
        """Take a configuration's trial from the log, or add it to `untried`.

        The log's trial counts if it has the same subject.
        """
        try:
            subject = self.oracle.look(config)
        except InvalidError as error:
            trial = Trial(config, error.outcome)
            self.log.add(trial)
            self._note(trial)
            return
        trial_in_log = self.log.trials.get((config, subject))
        # A configuration that failed is tried again: the cause may have been chance, such as a lack of memory. One that
        # made the device unusable is not tried again: it would end this search as well.
        if trial_in_log is not None and (
            isinstance(trial_in_log.outcome, Measured) or trial_in_log.outcome.stage == "lost"
        ):
            self._note(trial_in_log)
        else:
            untried.append((config, subject))

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
        """The winner, the two finalists, their run-off, and remarks.

        The finalists have the least medians. These were measured one after the other, or days apart, and a GPU drifts
        by more than their difference. So both are timed in turn, which decides if they differ.

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
        second_wins = paired.differ and paired.ratio.median < 1
        return (second if second_wins else first), (first, second), paired, []

    def _runoff(self, first: Trial, second: Trial) -> Paired | None:
        first_key, second_key = ((each.config, each.subject) for each in (first, second))
        logged = self.log.runoffs.get((first_key, second_key))
        if logged is not None and first.resumed and second.resumed:  # nothing was measured anew since that run-off
            return logged
        if self._over():
            return None
        paired = self.oracle.pair(first.config, second.config)
        self.log.add_runoff(first, second, paired)
        return paired

    def _why_nothing(self) -> str:
        outcomes = {config: trial.outcome for config, trial in self.trials.items()}
        failures = {config: outcome for config, outcome in outcomes.items() if isinstance(outcome, Invalid)}
        title = f"{self.name}: no configuration could be measured"
        if self.out_of_time:
            title += f"; the budget of {self.budget_s:g} s ended the search"
        elif not failures:
            title += ": none is left after pruning"
        return "\n".join([title, *failure_lines(failures)])
