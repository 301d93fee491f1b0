"""Kernels compiled ahead of their launches, several at once, by processes.

This process makes the generated text, which is quick. Other processes build machine code of it, which is slow: Numba
builds one kernel at a time within a process. A process may end or take too long, and only its kernel fails. Machine
code goes into the disk cache, where launches find it. Without a disk cache, nothing is built ahead unless there is a
time limit: then machine code waits in this process's memory for its launch.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from cuda_async.locks import Gate
from cutile import config
from cutile.backend.interface import Executable, Source, Target
from cutile.backend.registry import backend
from cutile.compile.driver import Request, built_ahead, front, lower, machine_code
from cutile.compile.key import cache_key
from cutile.compile.store import disk_store
from cutile.errors import ArgumentError, CompilationError
from cutile.ir import Function
from cutile.passes.pipeline import run_passes

# The building process, which `Builders` starts: generated text in, machine code out, until its input ends.
#
# A message is a length of eight bytes and a pickle: `(target, source)` in; `(executable, "")` or `(None, reason)` out.


def send(stream: BinaryIO, message: object) -> None:
    """Write a message."""
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read a message. Raises EOFError where the stream ends before it does."""
    head = stream.read(8)
    size = int.from_bytes(head, "little")
    data = stream.read(size) if len(head) == 8 else b""
    if not data or len(data) < size:  # the sender may be killed within a message
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Build until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # stdout becomes stderr: text that a toolchain prints must not come between answers
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
"""The fewest kernels for which processes are started: a process takes a second to start, a kernel 0.2 s to be built."""


@dataclass(frozen=True)
class Job:
    """A kernel to be built.

    Attributes:
        key: its key in the disk cache.
        source: its generated text.
        request: the kernel.
        function: its IR after the neutral passes, of which further texts are made if the first one spills.
    """

    key: str
    source: Source
    request: Request
    function: Function


def job_of(request: Request) -> Job | None:
    """The job of a request; None where the kernel was built before.

    Raises:
        KernelError: the kernel does not compile; shows the place.
    """
    request = request.as_compiled()
    settings = config.load()
    compiler = backend(request.target.backend)
    function = run_passes(front(request).function, check=settings.verify)
    key = cache_key(function, request.options, request.target, compiler.version())
    if key in built_ahead or (settings.disk_cache and disk_store(settings.cache_directory).get(key) is not None):
        return None
    lowered = lower(request, function, settings.verify, settings.prove)
    return Job(key, compiler.emit(lowered, request.target, request.options), request, function)


class Builders:
    """Processes that build kernels.

    They start when there is a kernel to build, and end with the `with` block.

    Args:
        workers: the number of processes; None for one for each core, but 16 at most. With 0 nothing is built ahead.
        limit_s: seconds after which a kernel is given up; None waits for ever.

    Raises:
        ValueError: there is a limit, and no process that it could end.
    """

    def __init__(self, workers: int | None = None, limit_s: float | None = None) -> None:
        self.workers = min(config.usable_cores(), MAX_WORKERS) if workers is None else workers
        if limit_s is not None and self.workers < 1:
            raise ArgumentError(
                f"limit_s: expected None with workers={workers}, got {limit_s!r}: only a process that compiles can be "
                "ended. Leave out workers, or take 1 or more"
            )
        self._limit_s = limit_s
        self._idle: list[_Worker] = []
        self._handed: list[str] = []  # keys of executables that were put into `built_ahead`

    def compile(self, requests: Sequence[Request]) -> list[Exception | None]:
        """Compile for the launches to come; return the error of each request, or None.

        Without a time limit, a few kernels are left for their first launch. With a limit, all are built here: a launch
        has no limit.
        """
        errors: list[Exception | None] = [None] * len(requests)
        settings = config.load()
        store = disk_store(settings.cache_directory)
        keeps = settings.disk_cache and store.refusal() is None
        if self.workers < 1 or (self._limit_s is None and not keeps):
            return errors
        numbers: dict[str, list[int]] = {}  # by key, the requests that share a job
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
            if executable is not None and keeps:
                store.put(job.key, executable)
            elif executable is not None:
                built_ahead[job.key] = executable
                self._handed.append(job.key)
            else:
                for number in numbers[job.key]:
                    errors[number] = CompilationError(reason)
        return errors

    def _build(self, jobs: Sequence[Job]) -> list[tuple[Executable | None, str]]:
        """Build jobs in several processes; return what `_Worker.build` says of each."""
        answers: list[tuple[Executable | None, str]] = [(None, "")] * len(jobs)
        queue = deque(enumerate(jobs))
        workers = [self._idle.pop() if self._idle else _Worker() for _ in range(min(self.workers, len(jobs)))]

        def serve(worker: _Worker) -> None:
            while True:
                try:
                    number, job = queue.popleft()
                except IndexError:
                    return
                answers[number] = worker.build(job, self._limit_s)

        threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:  # such as Ctrl-C: the jobs that are being built are given up
            for worker in workers:
                worker.close()
            raise
        self._idle += workers
        return answers

    def close(self) -> None:
        """End the processes, and drop the executables that no launch has taken."""
        while self._idle:
            self._idle.pop().close()
        while self._handed:
            built_ahead.pop(self._handed.pop(), None)

    def __enter__(self) -> Builders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """One process, which is started anew after it ended or was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, job: Job, limit_s: float | None) -> tuple[Executable | None, str]:
        """The executable of a job; or None, and the reason.

        The limit is for the whole job: a kernel that spills is built several times within it.
        """
        until = None if limit_s is None else time.monotonic() + limit_s

        def build(source: Source, target: Target) -> Executable:
            left_s = None if until is None else max(until - time.monotonic(), 0.0)
            executable, reason = self._send(source, target, left_s)
            if executable is None:
                raise CompilationError(reason or f"compiling took longer than {limit_s:g} s")
            return executable

        try:
            request = job.request
            executable = machine_code(job.function, job.source, request.target, request.options, build, config.load())
            return executable, ""
        except Exception as error:
            return None, str(error) or type(error).__name__

    def _send(self, source: Source, target: Target, left_s: float | None) -> tuple[Executable | None, str]:
        """The executable of a text; or None, and the reason.

        The reason is empty if `left_s` seconds were too few.
        """
        process = self._process = self._process or _start()
        given_up = Gate()

        def give_up() -> None:
            given_up.open()  # first: killing the process ends `receive` below, whose error handler reads the gate
            process.kill()

        timer = threading.Timer(left_s, give_up) if left_s is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            send(cast("BinaryIO", process.stdin), (target, source))
            return receive(cast("BinaryIO", process.stdout))
        except (OSError, EOFError):
            self.close()
            if given_up.is_open:
                return None, ""
            return None, f"the compiler's process ended with status {process.returncode}"
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()  # it may have fired just now
                if given_up.is_open:  # it fired after the answer came: the killed process serves no other job
                    self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # closing flushes, which fails as the process has ended
                        pipe.close()


def _start() -> subprocess.Popen[bytes]:
    """Start a building process, which finds modules as this one does.

    Not by `multiprocessing`, which would import the user's main module in it.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]  # imports pass over others, such as a `Path`
    code = f"import sys; sys.path[:] = {path!r}; from cutile.compile.ahead import main; main()"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
