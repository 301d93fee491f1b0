"""Somebody to ask without a device: configurations take what a table says, on a clock that is made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cutile.bench import Interval, Measurement, Paired
from cutile.tune import Config, Invalid, InvalidError


@dataclass
class FakeOracle:
    """Takes `ms(config)` milliseconds; `wrong` says why one cannot be used, and at which stage.

    Every measurement takes a second of the clock `now`.
    """

    ms: Callable[[Config], float]
    wrong: dict[str, Invalid] = field(default_factory=dict[str, Invalid])
    drift: dict[str, float] = field(default_factory=dict[str, float])
    subject: str = "code"
    seconds: float = 0.0
    looked: list[str] = field(default_factory=list[str])
    prepared: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    measured: list[str] = field(default_factory=list[str])
    paired: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def now(self) -> float:
        return self.seconds

    def _refuse(self, config: Config, *stages: str) -> None:
        found = self.wrong.get(config.id)
        if found is not None and found.stage in stages:
            raise InvalidError(found)

    def look(self, config: Config) -> str:
        self.looked.append(config.id)
        self._refuse(config, "build")
        return self.subject

    def prepare(self, configs: Sequence[Config]) -> list[Invalid | None]:
        self.prepared.append(tuple(each.id for each in configs))
        found = [self.wrong.get(each.id) for each in configs]
        return [each if each is not None and each.stage == "compile" else None for each in found]

    def measure(self, config: Config) -> Measurement:
        self.seconds += 1
        self.measured.append(config.id)
        self._refuse(config, "run", "check", "lost")
        return Measurement((self.ms(config) * self.drift.get(config.id, 1.0),) * 6)

    def pair(self, first: Config, second: Config) -> Paired:
        self.seconds += 1
        self.paired.append((first.id, second.id))
        self._refuse(first, "pair")
        ratio = self.ms(second) / self.ms(first)
        return Paired(
            self.ms(first) / 1e3, self.ms(second) / 1e3, Interval(ratio, ratio * 0.999, ratio * 1.001, 20), (9, 9)
        )
