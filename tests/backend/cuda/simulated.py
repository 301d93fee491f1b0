"""The generated CUDA file run by Python, with NumPy functions for the intrinsics. No tests.

One thread has the whole tile as its fragment. There are element-wise operations on integers and bool, and reductions
to a scalar: tests look at the control flow, not at registers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from cutile import dtypes
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import i32
from cutile.ops import OPS

Array = np.ndarray[Any, Any]
Step = Callable[..., Any]


def _meaning(name: str, dtype: Any = i32, **attributes: Any) -> Step:
    """The NumPy meaning of an operation; literals among its operands are of `dtype`."""
    op = object.__new__(OPS[name])
    defaults = {key: each.default for key, each in op.fields.items() if each.kind == "attribute"}
    op.attributes = {**defaults, **attributes}

    def step(*operands: Any) -> Any:
        arguments: list[Any] = [
            x if isinstance(x, np.ndarray | np.generic) else np.asarray(x, dtype.numpy) for x in operands
        ]
        with np.errstate(all="ignore"):
            return op.reference(*arguments)

    return step


class _Intrinsics:
    """The modules that a generated file imports, for one tile of `x`."""

    def __init__(self, x: Array) -> None:
        self.x = x
        self.out = np.empty_like(x)

    def elementwise(self, name: str, dtype: Any, *rest: Any) -> Step:
        return _meaning(name, dtype)

    def select(self, dtype: Any, *rest: Any) -> Step:
        return _meaning("select", dtype)

    def constant(self, value: Any, dtype: Any, count: int) -> Step:
        made = np.asarray(value).astype(dtype.numpy)
        return lambda: np.full(len(self.x), made) if count else made

    def convert(self, source: Any, target: Any, *rest: Any) -> Step:
        def step(value: Any) -> Any:
            return np.asarray(value).astype(target.numpy)

        return step

    def splat(self, dtype: Any, count: int) -> Step:
        def step(value: Any) -> Any:
            return np.full(len(self.x), value)

        return step

    def reduce(self, name: str, *rest: Any, **memory: Any) -> Step:
        meaning = _meaning(name, axis=0)

        def step(tile: Any, *buffers: Any) -> Any:
            return meaning(tile)

        return step

    def fail_unless(self, site: int, *rest: Any, **how: Any) -> Step:
        def step(condition: Any, *words: Any) -> None:
            assert condition, f"assertion {site} failed"

        return step

    def zero(self, *rest: Any) -> Step:
        return lambda *rest: 0  # pyright: ignore[reportUnknownLambdaType]

    def load(self, *rest: Any, **how: Any) -> Step:
        return lambda *address: self.x.copy()  # pyright: ignore[reportUnknownLambdaType]

    def store(self, *rest: Any, **how: Any) -> Step:
        def step(value: Any, *address: Any) -> None:
            self.out[...] = value

        return step


def run(text: str, entry: str, x: Array, n: int, m: int) -> Array:
    """One tile block of a generated kernel `(out, x, n, m)`, on a tile that is all of `x`."""
    ours = _Intrinsics(x)
    names: dict[str, Any] = {
        "arith": SimpleNamespace(binary=ours.elementwise, unary=ours.elementwise),
        "compare": SimpleNamespace(compare=ours.elementwise, select=ours.select),
        "create": SimpleNamespace(constant=ours.constant),
        "cast": SimpleNamespace(convert=ours.convert),
        "shape": SimpleNamespace(splat=ours.splat),
        "reduce": SimpleNamespace(reduce=ours.reduce),
        "grid": SimpleNamespace(tile_block_id=ours.zero),
        "roles": SimpleNamespace(grid_dependency_wait=lambda most_blocks=0: lambda: None),
        "debug": SimpleNamespace(fail_unless=ours.fail_unless),
        "memory": SimpleNamespace(View=ours.zero, load=ours.load, store=ours.store),
        "Layout": Layout,
        **{each.__name__: each for each in dtypes.EVERY_DTYPE},
    }
    tree = ast.parse(text)
    tree.body = [each for each in tree.body if not isinstance(each, ast.Import | ast.ImportFrom)]
    exec(compile(tree, entry, "exec"), names)
    kernel = names[entry]
    report = [None] * ("report" in kernel.__code__.co_varnames[: kernel.__code__.co_argcount])  # where failures go
    kernel(None, len(x), None, len(x), np.int32(n), np.int32(m), 1, 1, 1, *report)
    return ours.out
