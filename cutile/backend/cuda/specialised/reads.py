"""What an operation reads: its operands, and what its regions read."""

from __future__ import annotations

from cutile.ir.core import Op, Value


def inside(op: Op) -> list[Op]:
    """The operations in an operation's regions."""
    return [nested for block in op.regions for nested in block.walk()]


def reads(op: Op) -> list[Value]:
    """The values that an operation, or one in its regions, reads; also those made in its regions."""
    return [value for each in (op, *inside(op)) for value in each.operands]
