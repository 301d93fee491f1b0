"""The search itself.

What is asked for is looked up, compiled, measured, written down; then the two best run off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cutile.bench import Paired
from cutile.errors import TuningError
from cutile.tune.log import Invalid, Measured, Trial, TrialLog
from cutile.tune.oracle import InvalidError, Oracle
from cutile.tune.space import Config, Searcher
from cutile.tune.table import Progress, ranked

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
