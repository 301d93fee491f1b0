"""Kernels compiled ahead of their launches, several at once.

By processes, so that one may fail, or be given up.

This process makes the text, which is quick; others build machine code of it, which is not, and which Numba does one at
a time within a process. It goes through the disk cache, where launches find it; without one nothing is built ahead.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from cuda_async.locks import Gate
from cutile import config
from cutile.backend.interface import Executable, Source, Target
from cutile.backend.registry import backend
from cutile.compile.driver import Request, front, lower
from cutile.compile.key import cache_key
from cutile.compile.store import disk_store
from cutile.errors import CompilationError
from cutile.passes.pipeline import run_passes

# A process that builds.
#
# Generated text in, machine code out, until its input ends. Started by `Builders` alone.
#
# Messages are a length of eight bytes and a pickle: `(target, source)` in; `(executable, "")` or `(None, reason)` out.


def send(stream: BinaryIO, message: object) -> None:
    """Write a message."""
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read a message. Raises EOFError where there is none any more."""
    head = stream.read(8)
    data = stream.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
    if not data:
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Build until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a toolchain prints is no answer
    while True:
        try:
            target, source = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            send(answers, (backend(target.backend).build(source, target), ""))
        except Exception as error:
            send(answers, (None, str(error) or type(error).__name__))


MAX_WORKERS = 16
WORTH_A_PROCESS = 8
"""From so many kernels on: a process takes a second to be ready, a kernel a fifth to be built."""


@dataclass(frozen=True)
class Job:
    """What is to be built: the key of the disk cache, the text, and for what."""

    key: str
    source: Source
    target: Target


def job_of(request: Request) -> Job | None:
    """What the disk cache lacks for a request; None where it has it.

    Raises:
        KernelError: the kernel does not compile; shows the place.
    """
    request = request.as_compiled()
    settings = config.load()
    made_by = backend(request.target.backend)
    function = run_passes(front(request).function, check=settings.verify)
    key = cache_key(function, request.options, request.target, made_by.version())
    if disk_store(settings.cache_directory).get(key) is not None:
        return None
    lowered = lower(request, function, settings.verify)
    return Job(key, made_by.emit(lowered, request.target, request.options), request.target)


class Builders:
    """Processes that build kernels.

    They start when there is something to do, and end with the `with` block.

    Args:
        workers: how many; one for each core by default, 16 at the most. None are started with 0.
        limit_s: seconds after which a kernel is given up; None waits.
    """

    def __init__(self, workers: int | None = None, limit_s: float | None = None) -> None:
        self.workers = min(config.usable_cores(), MAX_WORKERS) if workers is None else workers
        self._limit_s = limit_s
        self._idle: list[_Worker] = []

    def compile(self, requests: Sequence[Request]) -> list[Exception | None]:
        """Compile into the disk cache; return, for each request, what went wrong.

        Few kernels without a time limit are left for their first launch.
        """
        errors: list[Exception | None] = [None] * len(requests)
        settings = config.load()
        store = disk_store(settings.cache_directory)
        if not settings.disk_cache or self.workers < 1 or store.refusal() is not None:
            return errors
        numbers: dict[str, list[int]] = {}
        jobs: list[Job] = []
        for number, request in enumerate(requests):
            try:
                job = job_of(request)
            except Exception as error:
                errors[number] = error
                continue
            if job is not None:
                if job.key not in numbers:
                    jobs.append(job)
                numbers.setdefault(job.key, []).append(number)
        if self._limit_s is None and (self.workers == 1 or len(jobs) < WORTH_A_PROCESS):
            return errors
        for job, (executable, reason) in zip(jobs, self._build(jobs), strict=True):
            if executable is not None:
                store.put(job.key, executable)
            else:
                for number in numbers[job.key]:
                    errors[number] = CompilationError(reason)
        return errors

    def _build(self, jobs: Sequence[Job]) -> list[tuple[Executable | None, str]]:
        answers: list[tuple[Executable | None, str]] = [(None, "")] * len(jobs)
        left = deque(enumerate(jobs))
        workers = [self._idle.pop() if self._idle else _Worker() for _ in range(min(self.workers, len(jobs)))]

        def serve(worker: _Worker) -> None:
            while True:
                try:
                    number, job = left.popleft()
                except IndexError:
                    return
                answers[number] = worker.build(job, self._limit_s)

        threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: what is being built is given up
            for worker in workers:
                worker.close()
            raise
        self._idle += workers
        return answers

    def close(self) -> None:
        """End the processes."""
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """One process, started anew after one that ended or was given up."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, job: Job, limit_s: float | None) -> tuple[Executable | None, str]:
        process = self._process = self._process or _start()
        given_up = Gate()

        def give_up() -> None:
            given_up.open()
            process.kill()

        timer = threading.Timer(limit_s, give_up) if limit_s is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            send(cast("BinaryIO", process.stdin), (job.target, job.source))
            return receive(cast("BinaryIO", process.stdout))
        except (OSError, EOFError):
            self.close()
            if given_up.is_open:
                return None, f"compiling took longer than {limit_s:g} s"
            return None, f"the compiler's process ended with status {process.returncode}"
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was to be written to a process that has ended
                        pipe.close()


def _start() -> subprocess.Popen[bytes]:
    """A process that finds modules as this one does, and runs no code of the user's."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from cutile.compile.ahead import main; main()"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
