"""A kernel that does not compile is reported in a few frames: the user's, and the function that was called."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutile as ct
from cuda_async import Device
from cuda_async.errors import outer_frames, shows_place
from cutile import api
from cutile.errors import KernelError, KernelNameError
from tests.support.kernels import kernel

PACKAGES = tuple(str(Path(__file__).parents[2] / name) for name in ("cutile", "cuda_async"))
WRONG = kernel("def wrong(y: Mut):\n    y.store(y.load() + nothing)\n")


def launch() -> Any:
    return WRONG(api.ones((8,)).sync().partition((4,)))


def awaited() -> None:
    async def task() -> None:
        await launch()

    asyncio.run(task())


def interpreted() -> None:
    with ct.interpret():
        launch().sync()


def explained() -> None:
    op = launch()
    try:
        op.explain("sm_80")
    finally:
        op.discard()


CALLS: dict[str, tuple[Callable[[], object], int]] = {
    "sync": (lambda: launch().sync(), 3),
    "sync_on": (lambda: launch().sync_on(Device.host().new_stream()), 2),
    "then": (lambda: api.ones((8,)).partition((4,)).then(WRONG).sync(), 4),
    "interpret": (interpreted, 4),
    "await": (awaited, 3),
    "bind": (lambda: launch().bind(Device.host().new_stream()), 3),
    "explain": (explained, 3),
    "graph": (lambda: launch().graph(), 2),
}


def test_a_captured_value_that_no_longer_compiles_shows_few_frames() -> None:
    adds = kernel("def adds(y: Mut):\n    y.store(y.load() + N)\n", N=1)
    y = api.zeros((8,)).sync()
    adds(y.mut.partition((4,))).sync()
    adds.cache.function.__globals__["N"] = object()
    with pytest.raises(KernelError) as failure:
        adds(y.mut.partition((4,))).bind(Device.host().new_stream())
    frames = [frame.filename for frame in traceback.extract_tb(failure.value.__traceback__)]
    assert len([file for file in frames if file.startswith(PACKAGES)]) <= 3, frames


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_that_does_not_compile_shows_few_frames(name: str) -> None:
    call, most = CALLS[name]
    with pytest.raises(KernelNameError) as failure:
        call()
    frames = [frame.filename for frame in traceback.extract_tb(failure.value.__traceback__)]
    ours = [file for file in frames if file.startswith(PACKAGES)]
    assert len(ours) <= most, ours
    assert frames[0] == __file__
    assert failure.value.__suppress_context__


def test_frames_of_the_user_stay() -> None:
    def make(x: Any) -> Any:
        raise KernelError("inside the user's function")

    with pytest.raises(KernelError) as failure:
        api.ones((8,)).then(make).sync()
    assert "make" in [frame.name for frame in traceback.extract_tb(failure.value.__traceback__)]


def test_other_errors_keep_their_frames() -> None:
    def fail(x: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as failure:
        api.ones((8,)).then(fail).sync()
    assert not shows_place(failure.value)
    frames = traceback.extract_tb(failure.value.__traceback__)
    assert sum(frame.filename.startswith(PACKAGES) for frame in frames) > 3
    assert [frame.name for frame in traceback.extract_tb(outer_frames(failure.value))][-1] == "fail"
