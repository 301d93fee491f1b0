"""Kernels compiled ahead by other processes: they end up in the disk cache; what fails there fails alone."""

from __future__ import annotations

import io
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from cutile import CompilationError, KernelError, api
from cutile.backend.interface import Source, Target
from cutile.backend.registry import target_named
from cutile.compile import ahead
from cutile.compile.ahead import Builders, Job, job_of
from cutile.compile.driver import Request, built_ahead, compile_kernel, front
from cutile.tune import Autotuner
from tests.support.kernels import kernel

ADD = kernel("def add(y: Mut, x: Tensor, *, N: Const = 1):\n    y.store(y.load() + ct.load_tile_like(x, y) * N)\n")
WRONG = kernel("def wrong(y: Mut):\n    y.store(y.load() + nothing)\n")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTILE_CACHE_DIR", str(tmp_path))


def request_of(factor: int) -> Request:
    x = api.meta((256,))
    op = ADD(x.mut.partition((64,)), api.meta((256,)), N=factor)
    try:
        found = op.request(x.device)
        assert found is not None
        return replace(found, target=target_named("cpu"))
    finally:
        op.discard()


def wrong() -> Request:
    request = request_of(1)
    cache = WRONG.cache
    only = {"y": request.specialization.parameters["y"]}
    specialization = replace(request.specialization, parameters=only)
    return replace(request, function=cache.function, source=cache.source, specialization=specialization)


@pytest.mark.slow
def test_kernels_are_built_by_others_and_found_in_the_cache() -> None:
    requests = [*(request_of(n) for n in range(1, 9)), request_of(3), wrong()]
    with Builders(workers=2) as builders:
        *fine, failed = builders.compile(requests)
        assert fine == [None] * 9
        assert isinstance(failed, KernelError)
        assert "nothing" in str(failed)
        assert builders.compile(requests[:9]) == [None] * 9
    for request in requests[:9]:
        assert job_of(request) is None
        assert compile_kernel(request).from_disk


@pytest.mark.slow
def test_a_folder_of_modules_that_is_no_text_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Python's imports pass over it."""
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])
    with Builders(workers=1, limit_s=60) as builders:
        assert builders.compile([request_of(1)]) == [None]


@pytest.mark.slow
def test_what_ends_its_process_fails_alone() -> None:
    """Another process takes its place."""
    good = job_of(request_of(1))
    assert good is not None
    bad = replace(good, key="0" * 64, source=replace(good.source, text="import os\nos._exit(3)\n"))
    with Builders(workers=1, limit_s=60) as builders:
        answers = builders._build([bad, good])  # pyright: ignore[reportPrivateUsage]
    assert answers[0] == (None, "the compiler's process ended with status 3")
    assert answers[1][0] is not None


def test_what_takes_too_long_is_given_up() -> None:
    """No process is ready within a millisecond."""
    with Builders(workers=1, limit_s=0.001) as builders:
        (error,) = builders.compile([request_of(1)])
    assert isinstance(error, CompilationError)
    assert str(error) == "compiling took longer than 0.001 s"


def test_a_limit_that_ends_behind_the_answer_harms_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    receive, timers = ahead.receive, list[threading.Timer]()

    class Timer(threading.Timer):
        def start(self) -> None:
            timers.append(self)
            super().start()

    def receive_and_run_out_of_time(stream: BinaryIO) -> Any:
        answer = receive(stream)
        timers[-1].function()
        return answer

    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(ahead, "receive", receive_and_run_out_of_time)
    request = replace(request_of(1), target=Target("nobody", ""))
    nobodys = Job("0" * 64, Source("", "", ()), request, front(request).function)
    with Builders(workers=1, limit_s=60) as builders:
        answers = builders._build([nobodys] * 2)  # pyright: ignore[reportPrivateUsage]
    assert answers[0] == answers[1]
    assert "nobody" in answers[0][1]


def test_an_answer_that_is_cut_short_is_an_end(tmp_path: Path) -> None:
    with (tmp_path / "answers").open("wb") as stream:
        ahead.send(stream, "an answer")
    data = (tmp_path / "answers").read_bytes()
    assert ahead.receive(io.BytesIO(data)) == "an answer"  # type: ignore[arg-type]
    for size in range(len(data)):
        with pytest.raises(EOFError):
            ahead.receive(io.BytesIO(data[:size]))  # type: ignore[arg-type]


def test_few_kernels_are_left_for_their_launch() -> None:
    with Builders(workers=8) as builders:
        assert builders.compile([request_of(1), request_of(2)]) == [None, None]
    assert job_of(request_of(1)) is not None


def test_without_a_disk_cache_nothing_is_built_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTILE_DISK_CACHE", "0")
    with Builders(workers=8) as builders:
        assert builders.compile([request_of(n) for n in range(20)]) == [None] * 20
        assert job_of(request_of(0)) is not None


@pytest.mark.slow
def test_a_limit_holds_without_a_disk_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch takes what was built in time, and builds nothing."""
    monkeypatch.setenv("CUTILE_DISK_CACHE", "0")
    with Builders(workers=1, limit_s=0.001) as builders:
        (error,) = builders.compile([request_of(1)])
    assert str(error) == "compiling took longer than 0.001 s"
    with Builders(workers=1, limit_s=60) as builders:
        assert builders.compile([request_of(1), request_of(2)]) == [None] * 2
        assert job_of(request_of(1)) is None
        compiled = compile_kernel(request_of(1))
        assert "build" not in compiled.seconds
        assert not compiled.from_disk
    assert not built_ahead
    assert not list(tmp_path.iterdir())


def test_a_limit_needs_a_process() -> None:
    with pytest.raises(ValueError, match=r"limit_s: expected None with workers=0, got 5: .* take 1 or more"):
        Autotuner("add").compile(workers=0, limit_s=5)
    Autotuner("add").compile(workers=0)
