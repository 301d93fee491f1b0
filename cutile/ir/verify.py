"""The rules of IR.

Definitions come before uses, nested blocks end with a terminator, operands and results have the declared types.
"""

from __future__ import annotations

from cutile.errors import IRError, KernelTypeError
from cutile.ir.control import Yield
from cutile.ir.core import Block, Function, Op, Value


def verify(function: Function) -> None:
    """Check every rule.

    Raises:
        IRError: a rule is broken; the message names the operation and its place.
    """
    _block(function.body, set(), nested=False)  # the body of a function has no terminator


def _block(block: Block, outer: set[Value], nested: bool) -> None:
    defined = outer | set(block.arguments)
    for position, op in enumerate(block.operations):
        last = position == len(block.operations) - 1
        if op.terminates and not (last and nested):
            raise _error(op, "a terminator belongs at the end of a nested block")
        if last and nested and not isinstance(op, Yield):
            raise _error(op, "a nested block must end with yield")
        for value in op.operands:
            if value not in defined:
                raise _error(op, f"operand %{value.name or '_'} is used before it is defined")
        for inner in op.regions:
            _block(inner, set[Value]() if op.isolated else defined, nested=True)
        try:
            op.check()
            types = op.infer()
        except (KernelTypeError, IRError) as error:
            raise _error(op, str(error)) from error
        if tuple(value.type for value in op.results) != types:
            got = [str(value.type) for value in op.results]
            raise _error(op, f"results have the types {got}, the operation gives {[str(t) for t in types]}")
        duplicate = defined & set(op.results)
        if duplicate:
            raise _error(op, f"%{next(iter(duplicate)).name} is defined twice")
        defined |= set(op.results)
    if nested and not block.operations:
        raise IRError("a nested block is empty: it must end with yield")


def _error(op: Op, message: str) -> IRError:
    where = f" (from {op.location})" if op.location else ""
    return IRError(f"{op.name}{where}: {message}")
