"""Operation classes by name, for the IR's parser, the tests and the documentation."""

from __future__ import annotations

from collections.abc import Iterator

from cutile.errors import IRError
from cutile.ir import constant, control
from cutile.ir.core import Op
from cutile.ops import (
    arith,
    atomic,
    bound,
    cast,
    compare,
    create,
    debug,
    grid,
    math,
    matmul,
    memory,
    pointer,
    reduce,
    rounding,
    shape,
    sort,
    view,
)

_MODULES = (
    arith, atomic, bound, cast, compare, create, debug, grid, math, matmul, memory, pointer, reduce, rounding, shape,
    sort, view, constant, control,
)  # fmt: skip
FAMILIES = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
"""The module of each family of operations, by the family's name."""


def _operations() -> Iterator[type[Op]]:
    """The operations that the families' modules define."""
    for module in FAMILIES.values():
        members = (member for member in vars(module).values() if isinstance(member, type) and issubclass(member, Op))
        # Without operations that are imported from other modules, and without base classes, which have no name.
        yield from (op for op in members if op.__module__ == module.__name__ and op.name)


def _by_name() -> dict[str, type[Op]]:
    ops: dict[str, type[Op]] = {}
    for op in _operations():
        if not op.__doc__:  # the page of the language is made of docstrings
            raise IRError(f"operation {op.name!r} has no docstring")
        if op.name in ops:
            raise IRError(f"two operations are named {op.name!r}: {ops[op.name].__module__} and {op.__module__}")
        ops[op.name] = op
    return ops


OPS: dict[str, type[Op]] = _by_name()
"""The class of each operation, by its name in the IR."""


def family(op: type[Op]) -> str:
    """The family an operation belongs to: the last part of its module's name."""
    return op.__module__.rpartition(".")[2]
