"""Mistakes in kernels: an exception of the project, the place or argument, a remedy; then a good launch works."""

from __future__ import annotations

import math

import pytest

import cutile as ct
from cuda_async import Device
from cutile import api, f32
from cutile.errors import KernelError
from tests.launch.mistakes import MISTAKES, Mistake
from tests.support.kernels import define

stream = Device.host().new_stream()
GOOD = Mistake("def good(y: Mut):\n    y.store(y.load() + 1)\n", says="nothing")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_and_nothing_is_lost(name: str) -> None:
    mistake = MISTAKES[name]
    y = api.ones((4,), f32).sync_on(stream)
    with ct.use_backend("reference"):
        with pytest.raises(
            (KernelError, ct.ArgumentError, ct.ArgumentTypeError), match=f"(?s){mistake.says}"
        ) as caught:
            run(mistake, y)
        for error in getattr(caught.value, "errors", ()):
            assert error.location is not None, error
            assert "^" in str(error)
            assert error.remedy, f"no remedy: {error}"
        run(GOOD, y)
    assert y.to_host_vec().sync_on(stream).tolist() == [2.0] * 4


def run(mistake: Mistake, y: ct.Tensor) -> None:
    """Declare the kernel, and launch it."""
    kernel = ct.entry(define(mistake.text, math=math))
    kernel(y.mut.partition((4,)), *mistake.arguments).sync_on(stream)
