"""Operation classes by name, for the parser of IR, tests and documentation."""

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


def _collect() -> Iterator[tuple[str, type[Op]]]:
    for module in FAMILIES.values():
        for member in vars(module).values():
            if (  # a named operation of this module, neither a base class nor an imported one
                isinstance(member, type)
                and issubclass(member, Op)
                and member.name
                and member.__module__ == module.__name__
            ):
                if not member.__doc__:
                    raise IRError(f"operation {member.name!r} has no docstring")
                yield member.name, member


def _build() -> dict[str, type[Op]]:
    ops: dict[str, type[Op]] = {}
    for name, op in _collect():
        if name in ops:
            raise IRError(f"two operations are named {name!r}: {ops[name].__module__} and {op.__module__}")
        ops[name] = op
    return ops


OPS: dict[str, type[Op]] = _build()


def family(op: type[Op]) -> str:
    """The family an operation belongs to: the last part of its module's name."""
    return op.__module__.rpartition(".")[2]
