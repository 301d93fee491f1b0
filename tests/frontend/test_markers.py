"""Markers are constants of the compiler: by their module, imported by name, and as what two of them are worth."""

import pytest

import cutile as ct
from cutile.errors import KernelTypeError
from cutile.frontend.build import build
from cutile.frontend.source import take_source
from cutile.ir.constant import Constant
from tests.support.kernels import define
from tests.support.programs import mut

SAME = "def kernel(y: Mut):\n    y.store(1.0 if {} else 2.0)\n"


def stored(condition: str) -> float:
    function = define(SAME.format(condition), ZERO=ct.rounding.ZERO, padding=ct.padding, four=ct.Latency(4))
    made = build(function, take_source(function), {"y": mut(8)}, {}).function
    (constant,) = (op for op in made.walk() if isinstance(op, Constant))
    return constant.value


@pytest.mark.parametrize(
    "condition",
    [
        "ct.rounding.ZERO is ZERO",
        "padding.NEG_INF == ct.padding.NEG_INF",
        "ct.ftz.ENABLED != ct.ftz.DISABLED",
        "ct.Latency(4) == four",
    ],
)
def test_a_marker_is_itself(condition: str) -> None:
    assert stored(condition) == 1.0
    assert stored(f"not ({condition})") == 2.0


def test_a_latency_is_at_least_one() -> None:
    with pytest.raises(KernelTypeError, match="at least 1 turn, got 0"):
        stored("ct.Latency(0) == 1")
    with pytest.raises(ValueError, match="at least 1"):
        ct.Latency(0)


def test_markers_say_their_names() -> None:
    assert repr(ct.rounding.NEAREST_EVEN) == "ct.rounding.NEAREST_EVEN"
    assert repr(ct.Latency(3)) == "ct.Latency(3)"
