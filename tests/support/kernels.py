"""Kernels made of text, for tests that need many."""

from __future__ import annotations

import itertools
import linecache
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import cutile as ct
from cutile.entry import Kernel

_numbers = itertools.count()


def define(text: str, **names: Any) -> Callable[..., Any]:
    """The last function that `text` defines; `ct` and `np` are known in it, and `names`."""
    file = f"<kernel {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {
        "ct": ct,
        "np": np,
        "operator": operator,
        **{name: getattr(ct, name) for name in _NAMES},
        **names,
    }
    before = set(scope)
    exec(compile(text, file, "exec"), scope)
    made = [value for name, value in scope.items() if name not in before and callable(value)]
    return made[-1]


_NAMES = (
    "Const", "DType", "Dyn", "Mut", "Tensor",
    "bf16", "f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64",
)  # fmt: skip


def kernel(text: str, **names: Any) -> Kernel:
    """`define`, made a kernel."""
    return ct.entry(define(text, **names))
