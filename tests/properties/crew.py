"""The processes of a search. One that dies or hangs is replaced, and its kernel counts as a failure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess

from tests.properties.worker import Agreed, Batch, Disagreed, Finished, Said, Tried, work

PRELOADED = ["tests.properties.worker", "cutile.backend.cpu.build", "cutile.backend.cpu.intrinsics"]
"""What takes seconds to import, and touches no GPU."""
PATIENCE = 100.0
"""Seconds for one kernel, before its process is taken to hang."""


@dataclass
class Found:
    """What a search showed.

    Attributes:
        count: kernels that were compared, those that failed among them.
        failures: a short kernel and what was wrong with it, for each.
        seconds: by backend, what each kernel took to compile.
        slowest: by backend, the kernel that took longest.
        about: what was said of kernels, and of how many.
    """

    count: int = 0
    failures: list[Disagreed] = field(default_factory=list[Disagreed])
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    slowest: dict[str, str] = field(default_factory=dict[str, str])
    about: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def agreed(self, text: str, said: Agreed) -> None:
        """Count a kernel on which there is no failure."""
        self.count += 1
        for what, value in said.about.items():
            self.about.setdefault(what, Counter())[value] += 1
        for backend, seconds in said.seconds.items():
            times = self.seconds.setdefault(backend, [])
            if not times or seconds > max(times):
                self.slowest[backend] = text
            times.append(seconds)


@dataclass
class _Member:
    process: ForkServerProcess
    pipe: Connection
    batch: Batch
    done: int = 0
    text: str = "(none)"
    since: float = field(default_factory=time.monotonic)
    failure: Disagreed | None = None


class Crew:
    """So many processes, which go through batches.

    Args:
        batches: what is to be done.
        body: what a process does with its end of a pipe.
        shown: is told each failure, once it is as small as it gets.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        shown: Callable[[Disagreed], None],
        body: Callable[[Connection], None] = work,
        patience: float = PATIENCE,
    ) -> None:
        self._batches = batches
        self._body = body
        self._shown = shown
        self._patience = patience
        self._members: dict[Connection, _Member] = {}
        self.found = Found()

    def run(self, processes: int, limit: float = float("inf")) -> Found:
        """Go through all batches, or as many kernels as so many seconds allow."""
        end = time.monotonic() + limit
        for _ in range(processes):
            self._start(next(self._batches, None))
        while self._members and time.monotonic() < end:
            for pipe in wait(list(self._members), timeout=1.0):
                self._listen(self._members[pipe])  # type: ignore[index]
            for member in list(self._members.values()):
                if time.monotonic() - member.since > self._patience:
                    self._lost(member, f"nothing was heard for {self._patience:.0f} s")
        for member in list(self._members.values()):
            self._end(member)
        return self.found

    def _start(self, batch: Batch | None) -> None:
        if batch is None or batch.count <= 0:
            return
        # A fork of a process that has used a GPU may not use it: all come from one that has only imported.
        context = get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        ours, theirs = context.Pipe()
        process = context.Process(target=self._body, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        ours.send(batch)
        self._members[ours] = _Member(process, ours, batch)

    def _listen(self, member: _Member) -> None:
        try:
            said: Said = member.pipe.recv()
        except (EOFError, ConnectionError):
            self._lost(member, "the process ended")
            return
        member.since = time.monotonic()
        match said:
            case Tried():
                member.text = said.text
            case Agreed():
                member.done += 1
                self.found.agreed(member.text, said)
            case Disagreed():
                member.failure = said
            case Finished():
                self._next(member)

    def _next(self, member: _Member) -> None:
        """The rest of a batch that failed, else another one."""
        failed = self._settle(member)
        batch = member.batch.rest(member.done) if failed else None
        if batch is None or batch.count <= 0:
            batch = next(self._batches, None)
        if batch is None:
            self._end(member)
            return
        member.batch, member.done, member.since = batch, 0, time.monotonic()
        member.pipe.send(batch)

    def _settle(self, member: _Member) -> bool:
        """Count a failure, if there was one."""
        failure, member.failure = member.failure, None
        if failure is None:
            return False
        member.done += 1
        self.found.count += 1
        self.found.failures.append(failure)
        self._shown(failure)
        return True

    def _lost(self, member: _Member, why: str) -> None:
        what = member.failure
        reason = f"{why}: {what.text}" if what is not None else why
        member.failure = Disagreed(what.backend if what else "a process", f"{member.text}\n{reason}")
        self._settle(member)
        self._end(member)
        self._start(member.batch.rest(member.done))

    def _end(self, member: _Member) -> None:
        self._settle(member)
        del self._members[member.pipe]
        member.pipe.close()
        member.process.kill()
        member.process.join()
