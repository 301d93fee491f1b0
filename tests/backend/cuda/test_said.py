"""What a GPU hands to `vprintf` for one value: C makes of it what Python makes of the value."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.intrinsics import debug
from cutile.backend.cuda.intrinsics.llvm import F64, i32c
from cutile.dtypes import f64
from tests.backend.cuda.emulated import Emulated, Vector

VALUES = (0.0, -0.0, 1.5, -2.25, 1e10, -1e-5, float("nan"), -float("nan"), float("inf"), -float("inf"))


def said(form: str, values: list[Any]) -> str:
    """What C's `snprintf` writes."""
    memory = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).snprintf(memory, ctypes.c_size_t(64), form.encode(), *values)
    return memory.value.decode()


@pytest.mark.parametrize(
    "spec", ["".join(each) for each in itertools.product(("", "+"), ("", "0"), ("1", "7"), "efgG")]
)
def test_a_float_has_the_text_that_python_gives_it(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def text(_: Any, value: str) -> Any:
        texts.append(value)
        return i32c(len(texts) - 1)

    monkeypatch.setattr(debug, "text", text)
    values = Vector(F64, np.array(VALUES))
    form, arguments = debug._arguments(Emulated(len(VALUES)), f"%{spec}", f64, values)  # pyright: ignore[reportPrivateUsage]
    for at, value in enumerate(VALUES):
        *front, number = (argument.data[at] for argument in arguments)
        passed: list[Any] = [ctypes.c_double(number)]
        if front:  # a text with the sign, and the width of the rest
            passed = [texts[int(front[0])].encode(), ctypes.c_int(int(front[1])), *passed]
        assert said(form, passed) == format(value, spec), value
