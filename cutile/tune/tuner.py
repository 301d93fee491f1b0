"""`Autotuner`: describes a search, and runs it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from cuda_async import Stream, default_device
from cutile import config as settings
from cutile.bench import DEFAULT_BENCH, BenchOptions
from cutile.compile.ahead import Builders
from cutile.compile.folders import make_private
from cutile.compile.store import cache_folder
from cutile.errors import TuningError
from cutile.tune.log import TrialLog
from cutile.tune.memory import Backup
from cutile.tune.record import Record
from cutile.tune.search import Candidate, DeviceOracle, Judge, Keep, Oracle, Poison, Search
from cutile.tune.space import Config, GridSearch, Searcher, space_hash
from cutile.tune.table import NotebookTable, Progress, Tuned, default_progress

AHEAD = 4
"""Configurations that are compiled before the next are measured, for each process that compiles.

With several for each, few processes wait for the last kernel. All wait while the device measures: compiling would slow
the kernels that are measured on the CPU, and the launches of all others.
"""

_MAX_NAME = 40  # characters of a search's name in its log's file name, which may have 255


class Autotuner:
    """A search for the fastest configuration.

    Its methods describe the search and return the tuner; `run` does the search.

    Args:
        name: the name of the search, in its log and its record.

    Example:
        >>> from cutile import Mut, Tensor, api, f32
        >>> from cutile.bench import BenchOptions
        >>> @ct.entry
        ... def saxpy(y: Mut, a: f32, x: Tensor):
        ...     y.store(a * ct.load_tile_like(x, y) + y.load())
        >>> x, y = (api.ones((1 << 16,)).sync() for _ in range(2))
        >>> result = (
        ...     Autotuner("saxpy")
        ...     .configs(tile=[64, 4096])
        ...     .bench(BenchOptions(warmup_ms=1, rep_ms=5))
        ...     .run(lambda config: saxpy(y.mut.partition((config.tile,)), 2.0, x))
        ... )
        >>> result.best.tile in (64, 4096), len(result.trials)
        (True, 2)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._searcher: Searcher | None = None
        self._keeps: list[Keep] = []
        self._required: list[Config] = []
        self._budget_s: float | None = None
        self._bench = DEFAULT_BENCH
        self._log: Path | None = None
        self._writes_log = True
        self._judge: Judge | None = None
        self._poison: Poison | None = None
        self._workers: int | None = None
        self._limit_s: float | None = None
        self._progress: Progress | None = None
        self._shows_progress = True

    # -- the configurations ---------------------------------------------------------------------

    def configs(
        self, space: Searcher | Iterable[Mapping[str, Any]] | None = None, /, **axes: Iterable[Any]
    ) -> Autotuner:
        """Set the configurations: combinations of values, a list, or a `Searcher`.

        Raises:
            ValueError: no configuration is named.
        """
        if space is not None and hasattr(space, "ask") and not axes:  # `GridSearch` refuses a space beside axes
            self._searcher = cast("Searcher", space)
        else:
            self._searcher = GridSearch(cast("Iterable[Mapping[str, Any]] | None", space), **axes)
        return self

    def prune(self, keep: Keep) -> Autotuner:
        """Try only configurations for which `keep(config)` is true.

        After several calls, all of their functions must be true.

        Example:
            >>> tuner = Autotuner("gemm").configs(BM=[64, 128], BN=[64, 256])
            >>> tuner.prune(lambda config: config.BM * config.BN <= 128 * 64) is tuner
            True
        """
        self._keeps.append(keep)
        return self

    def require(self, *configs: Mapping[str, Any]) -> Autotuner:
        """Measure these configurations first, whatever the budget.

        They are a baseline for the others. `run` raises TuningError if one of them cannot be measured, is pruned, or is
        not in the space.
        """
        self._required += [each if isinstance(each, Config) else Config(each) for each in configs]
        return self

    def budget(self, seconds: float) -> Autotuner:
        """Begin no configuration after so many seconds, and take the fastest so far."""
        self._budget_s = seconds
        return self

    # -- how it is measured -------------------------------------------------------------------

    def bench(self, options: BenchOptions | None = None, /, **changes: Any) -> Autotuner:
        """Set how long a measurement takes: options, and changes of them by name."""
        self._bench = replace(options or self._bench, **changes)
        return self

    def check(self, judge: Judge, *, poison: Poison | None = None) -> Autotuner:
        """Refuse configurations whose results are wrong.

        Each is run once and judged before it is timed.

        Args:
            judge: called with the operation's result. False or an AssertionError refuses it; None and true pass.
            poison: called before that run, to spoil the outputs. If it returns an operation, that is run. Without
                `poison`, a configuration that writes nothing may pass with the outputs of an earlier one.

        Example:
            >>> from cutile import api
            >>> y = api.zeros((64,)).sync()
            >>> tuner = Autotuner("copy").configs(tile=[16, 64])
            >>> tuner.check(lambda out: bool((out.y.numpy() == 1).all()), poison=lambda: api.fill(y, 0.0)) is tuner
            True
        """
        self._judge, self._poison = judge, poison
        return self

    def compile(self, *, workers: int | None = None, limit_s: float | None = None) -> Autotuner:
        """Set how kernels are compiled ahead.

        Args:
            workers: processes; by default one for each core, if there are enough kernels to be worth it.
            limit_s: seconds for a kernel. A configuration whose kernel takes longer, or ends its process, is invalid;
                the search goes on.

        Raises:
            ValueError: there is a limit without a process that it could end, by `workers=0`.
        """
        Builders(workers, limit_s).close()  # refuses a limit here, at the line that asks for it
        self._workers, self._limit_s = workers, limit_s
        return self

    # -- log and progress ---------------------------------------------------------------

    def log(self, path: str | Path | None) -> Autotuner:
        """Keep trials in this file; None keeps nothing.

        By default they are in the cache folder, in a file for each name and set of parameter names. A configuration is
        measured again where the kernel's code, its arguments, the device or the toolchain has changed.
        """
        self._log, self._writes_log = (None if path is None else Path(path)), path is not None
        return self

    def progress(self, tell: Progress | None) -> Autotuner:
        """Have `tell(trials, total)` called after each trial.

        By default a table is drawn in notebooks; with None nothing is shown.
        """
        self._progress, self._shows_progress = tell, tell is not None
        return self

    # -- running ------------------------------------------------------------------------------

    def run(self, candidate: Candidate, *, stream: Stream | None = None) -> Tuned:
        """Search, on the default device.

        A configuration that fails, at whatever stage, is invalid, and the search goes on. The two fastest are timed in
        turn, A B A B (the run-off), which decides between them.

        The memory that operations write is copied before the first of them runs. It is put back before each
        configuration is tried, and at the end: the caller's tensors are as they were.

        Args:
            candidate: makes the operation of a configuration; called anew for each run, outside of what is timed.
            stream: where it runs; a new stream by default.

        Raises:
            TuningError: nothing could be measured, or a required configuration could not be; says why.
            ForeignLogError: the log is of another search.
        """
        where = default_device().new_stream() if stream is None else stream
        with where.device, Builders(self._workers, self._limit_s) as builders:
            backup = Backup(self.name, where)
            oracle = DeviceOracle(candidate, where, builders, self._bench, self._judge, self._poison, backup)
            try:
                tuned = self.run_with(oracle, ahead=AHEAD * max(builders.workers, 1))
            except BaseException:
                with suppress(Exception):  # a lost device cannot be written; the error that ended the search says so
                    backup.restore()
                raise
            backup.restore()
            return tuned

    async def run_async(self, candidate: Candidate, *, stream: Stream | None = None) -> Tuned:
        """`run` on a thread of its own, so that the event loop goes on.

        Cancelling the task does not end the search.
        """
        return await asyncio.to_thread(self.run, candidate, stream=stream)

    def run_with(self, oracle: Oracle, *, ahead: int = 1) -> Tuned:
        """Search with an oracle of the caller's, in place of a device.

        The oracle prepares `ahead` configurations at once. Raises as `run`.
        """
        searcher = self._searcher
        if searcher is None:
            raise TuningError(f"{self.name}: there is nothing to try; say what with .configs(block=[64, 128])")
        total = self._check_required(searcher)
        if isinstance(searcher, GridSearch):
            searcher = GridSearch(searcher)  # a run uses it up, and the user may search the same one again
        # A log that the user has not named is a convenience, like the cache of compiled kernels: the search goes on
        # without it.
        log = TrialLog(self._path(searcher), self.name, tuple(searcher.parameters), optional=self._log is None)
        progress = self._progress or (default_progress(self.name) if self._shows_progress else None)
        search = Search(
            self.name, oracle, searcher, log, self._keeps, list(dict.fromkeys(self._required)), self._budget_s, ahead,
            total, progress,
        )  # fmt: skip
        search.run()
        winner, finalists, runoff, remarks = search.finish()
        assert winner.median_ms is not None
        record = None
        if isinstance(oracle, DeviceOracle):
            space = space_hash(searcher.parameters)
            record = Record(self.name, space, winner.config, winner.median_ms, oracle.provenance(winner.config))
        tuned = Tuned(
            self.name, winner.config, tuple(search.trials.values()), runoff, tuple(each.config for each in finalists),
            record, search.out_of_time, tuple(remarks), log.path,
        )  # fmt: skip
        if isinstance(progress, NotebookTable):
            progress.done(tuned.title)
        return tuned

    def _check_required(self, searcher: Searcher) -> int | None:
        """The number of configurations to try, where that is known.

        Raises TuningError if a required configuration is not among them.
        """
        members = None
        if isinstance(searcher, GridSearch):
            members = {each for each in searcher if all(keep(each) for keep in self._keeps)}
        for each in self._required:
            if not all(keep(each) for keep in self._keeps) or (members is not None and each not in members):
                raise TuningError(f"{self.name}: {each} is required, and is not among what is tried after pruning")
        return None if members is None else len(members)

    def _path(self, searcher: Searcher) -> Path | None:
        options = settings.load()
        if self._log is not None or not self._writes_log or not options.disk_cache:
            return self._log
        folder = cache_folder(options.cache_directory)
        with suppress(OSError):  # writing the log warns of it
            # The cache of compiled kernels shares the folder, and is not trusted where others may write to it.
            make_private(folder)
        name = re.sub(r"[^\w.-]+", "_", self.name, flags=re.ASCII)[:_MAX_NAME]
        # Other names become the same file name: by the substitution, or on file systems that ignore case.
        if name != self.name.lower():
            name += f"-{hashlib.sha256(self.name.encode(errors='surrogatepass')).hexdigest()[:16]}"
        return folder / "tune" / f"{name}-{space_hash(searcher.parameters)}.jsonl"
