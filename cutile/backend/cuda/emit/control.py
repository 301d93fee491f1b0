"""Loops and branches.

A value that a loop carries becomes one variable: assigned before the loop, and again at the end of each iteration.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cutile.analysis.structure import MAX_BRANCHES, chained
from cutile.backend.cuda.ops import Roles
from cutile.backend.gpu.emitter import Call, Expression
from cutile.ir import Block, For, If, Value, While

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def _assign(names: Sequence[str], values: Sequence[Value], kernel: Kernel) -> None:
    """Assign variables together: none is overwritten before the others have read it."""
    pairs = [(name, kernel.typed(value)) for name, value in zip(names, values, strict=True)]
    pairs = [(name, expression) for name, expression in pairs if name != expression]
    clash = any(_mentions(expression, name) for i, (name, _) in enumerate(pairs) for _, expression in pairs[i + 1 :])
    if not clash:
        for name, expression in pairs:
            kernel.body.write(f"{name} = ", expression)
        return
    temporaries = [(kernel.names.invented("next_" + name), name, expression) for name, expression in pairs]
    for new, _, expression in temporaries:
        kernel.body.write(f"{new} = ", expression)
    for new, name, _ in temporaries:
        kernel.body.write(f"{name} = {new}")


def _mentions(expression: Expression, name: str) -> bool:
    """Whether an expression reads a variable."""
    if isinstance(expression, str):
        return expression == name
    return any(_mentions(each, name) for each in expression.arguments)


def _variables(
    results: Sequence[Value], arguments: Sequence[Value], carried: Sequence[Value], kernel: Kernel
) -> list[str]:
    """One variable for each carried value.

    It is the initial value's variable if nothing else needs that variable, else a new one.
    """
    names: list[str] = []
    for result, argument, initial in zip(results, arguments, carried, strict=True):
        if kernel.may_overwrite(initial):
            names.append(str(kernel.use(initial)))
        else:
            names.append(kernel.fresh(argument if argument.name else result, "carried"))
        kernel.name(result, names[-1])
        kernel.name(argument, names[-1])
    return names


def _last_use(value: Value, block: Block, end: int, kernel: Kernel) -> int:
    """The position in `block` of the last operation whose text may mention `value`.

    The operation at `end` becomes a statement. The calls of other operations may be written where their results are
    used.
    """
    last = -1
    for position, op in enumerate(block.operations):
        if value in op.operands or any(value in each.operands for r in op.regions for each in r.walk()):
            inlined = position != end and kernel.could_inline(op)
            last = max(last, position, _last_use(op.result, block, end, kernel) if inlined else -1)
        if isinstance(op, For | While):  # a loop whose initial value is `value` may keep its variable for the result
            for initial, result in zip(op.carried, op.results, strict=True):
                last = max(last, _last_use(result, block, end, kernel) if initial is value else -1)
    return last


def _settle(block: Block, names: Sequence[str], old: Sequence[Value], kernel: Kernel) -> None:
    """Let a block's results be assigned to their variables where they are computed.

    `names` are the variables, `old` the values that they hold before. A result is assigned where it is computed if
    nothing reads the old value afterwards.
    """
    yields = block.terminator.operands
    for position, (name, value) in enumerate(zip(names, yields, strict=True)):
        where = next((i for i, op in enumerate(block.operations) if value in op.results), None)
        # Left out: values from outside, values that something else reads, and results of loops and branches, which have
        # variables already.
        if where is None or kernel.uses(value) != 1 or block.operations[where].regions:
            continue
        if not kernel.is_computed(block.operations[where]):
            continue
        if old and _last_use(old[position], block, where, kernel) > where:
            continue
        kernel.name(value, name)


def _nested(block: Block, kernel: Kernel, names: Sequence[str], old: Sequence[Value]) -> None:
    """Write a block's statements, then assign its yielded values to the variables.

    `old`: as of `_settle`.
    """
    kernel.body.enter()
    before = len(kernel.body.lines)
    _settle(block, names, old, kernel)
    kernel.block(block)
    _assign(names, block.terminator.operands, kernel)
    if not any(not line.lstrip().startswith("#") for line in kernel.body.lines[before:]):
        kernel.body.write("pass")
    kernel.body.leave()


def for_(op: For, kernel: Kernel) -> None:
    """`for k in range(n):`."""
    start, stop, step = kernel.use(op.start), kernel.use(op.stop), kernel.use(op.step)
    names = _variables(op.results, op.body.arguments[1:], op.carried, kernel)
    _assign(names, op.carried, kernel)
    counter = kernel.fresh(op.induction, "step")
    kernel.name(op.induction, counter)
    if str(step) == "1":
        bounds: tuple[Expression, ...] = (stop,) if str(start) == "0" else (start, stop)
    else:
        bounds = (start, stop, step)
    kernel.body.write(f"for {counter} in ", Call("range", bounds), ":")
    _nested(op.body, kernel, names, op.body.arguments[1:])


def while_(op: While, kernel: Kernel) -> None:
    """`while True:` with the condition and a `break` at the top.

    The condition may take statements, for which `while condition:` has no place.
    """
    names = _variables(op.results, op.condition.arguments, op.carried, kernel)
    for name, argument in zip(names, op.body.arguments, strict=True):
        kernel.name(argument, name)
    _assign(names, op.carried, kernel)
    kernel.body.write("while True:")
    kernel.body.enter()
    kernel.block(op.condition)
    (flag,) = op.condition.terminator.operands
    kernel.body.write("if not ", kernel.use(flag), ":")
    kernel.body.enter()
    kernel.body.write("break")
    kernel.body.leave()
    kernel.body.leave()
    _nested(op.body, kernel, names, op.body.arguments)


def if_(op: If, kernel: Kernel) -> None:
    """A branch.

    In a long chain of branches, each in a side of the one before, only `MAX_BRANCHES` are nested. The next ones are
    written behind them: a flag says whether they run.
    """
    flag = kernel.chained.get(op, "")
    if flag:
        kernel.body.write(f"{flag} = True")
        return
    chain = [op] if op in kernel.chained else chained(op)
    if len(chain) <= MAX_BRANCHES:
        _branch(op, kernel)
        return
    for result in op.results:
        kernel.name(result, kernel.fresh(result, "chosen"))
    for outer, inner in itertools.pairwise(chain):
        side = outer.orelse if inner in outer.orelse.operations else outer.then
        for result, value in zip(outer.results, side.terminator.operands, strict=True):
            if value in inner.results:  # all branches of the chain assign one variable
                kernel.name(value, str(kernel.use(result)))
    behind = chain[MAX_BRANCHES::MAX_BRANCHES]
    flag = kernel.names.invented("goes_on")
    kernel.chained.update({**dict.fromkeys(chain, ""), **dict.fromkeys(behind, flag)})
    kernel.body.write(f"{flag} = False")
    _branch(op, kernel)
    for branch in behind:
        kernel.body.write(f"if {flag}:")
        kernel.body.enter()
        kernel.body.write(f"{flag} = False")
        _branch(branch, kernel)
        kernel.body.leave()


def _branch(op: If, kernel: Kernel) -> None:
    """`if condition:`; a side that does nothing is left out where it can be."""
    names = [
        str(kernel.use(result)) if kernel.has_name(result) else kernel.fresh(result, "chosen") for result in op.results
    ]
    kernel.body.write("if ", kernel.use(op.condition), ":")
    _nested(op.then, kernel, names, ())
    if names or len(op.orelse.operations) > 1:
        kernel.body.write("else:")
        _nested(op.orelse, kernel, names, ())
    for result, name in zip(op.results, names, strict=True):
        kernel.name(result, name)


def roles(op: Roles, kernel: Kernel) -> None:
    """`if is_producer():` with the producer's code, `else:` with the consumers'."""
    kernel.body.write("if ", Call(kernel.bind("is_producer", "roles.is_producer", str(op.warpgroups)), ()), ":")
    _nested(op.producer, kernel, (), ())
    kernel.body.write("else:")
    _nested(op.consumer, kernel, (), ())


EMITTERS: dict[Any, Any] = {For: for_, While: while_, If: if_, Roles: roles}
