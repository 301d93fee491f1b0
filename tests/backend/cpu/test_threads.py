"""Kernels from several threads on several streams at once, and after a fork: right results, no abort, no deadlock."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from cutile.backend.cpu import load
from cutile.backend.cpu.backend import BACKEND
from cutile.backend.cpu.load import Blas, CpuKernel, blas
from cutile.backend.cpu.target import host_target
from tests.backend.cpu.programs import SAXPY, SOFTMAX, softmax_types, source
from tests.support.kernels import kernel
from tests.support.memory import launch
from tests.support.programs import GEMM

Array = np.ndarray[Any, Any]
ROUNDS = 500


def work(saxpy: Any, gemm: Any, seed: int, rounds: int) -> None:
    """Launch and check, each time on a stream of its own."""
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal(5000).astype(np.float32), np.zeros(5000, np.float32)
    a, b = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((70, 50), (50, 90)))
    for step in range(1, rounds + 1):
        launch(saxpy, (y, (512,)), 1.0, x, backend="cpu")
        np.testing.assert_allclose(y, step * x, rtol=1e-4)
        z = np.zeros((70, 90), np.float32)
        launch(gemm, (z, (32, 32)), a, b, backend="cpu", BK=16)
        np.testing.assert_array_equal(z, a @ b)


def test_two_threads_at_once() -> None:
    saxpy, gemm = kernel(dedent(SAXPY)), kernel(GEMM)
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            work(saxpy, gemm, seed, ROUNDS)
        except BaseException as error:
            failures.append(error)

    before = blas().threads()
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert blas().threads() == before  # let go


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_goes_on() -> None:
    saxpy, gemm = kernel(dedent(SAXPY)), kernel(GEMM)
    work(saxpy, gemm, 5, 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(saxpy, gemm, 6, 3)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def at_once(make: Callable[[], Any]) -> list[Any]:
    """What four threads get that call `make` at once."""
    barrier = threading.Barrier(4)
    results: list[Any] = []

    def run() -> None:
        barrier.wait(20)
        results.append(make())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_first_launches_of_two_streams_share_the_teams_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dedent(SOFTMAX)
    executable = BACKEND.build(source(text, softmax_types(1, 64)), host_target())
    loaded = CpuKernel(executable)
    allocate = load._aligned

    def slow(nbytes: int) -> Any:
        time.sleep(0.05)
        return allocate(nbytes)

    monkeypatch.setattr(load, "_aligned", slow)
    assert len(set(at_once(lambda: loaded._scratch_of_team(3)))) == 1


def test_the_blas_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> Blas:
        time.sleep(0.05)
        return Blas({}, None, None)

    monkeypatch.setattr(load, "_blas", None)
    monkeypatch.setattr(load, "_beside_scipy", opened)
    assert len(set(map(id, at_once(load.blas)))) == 1
