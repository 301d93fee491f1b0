"""Checks of a launch before anything is enqueued: its grid and its arguments.

The grid is inferred from the partitions, or given. A given grid equals the grid of exact partitions, and lies within
the grid of prefix partitions. Extents of one name are equal: `x: Tensor[f32, "m", "k"], w: Tensor[f32, "k", "n"]`.

Arguments obey the preconditions, and the index checks that the compiler moved to the launch. The compiler states both
as Python expressions of the kernel's parameters (`cutile/passes/bounds.py`). The first launch joins them to one
expression, which each launch evaluates. Only a failed launch evaluates them one by one, to name the failed one.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from cuda_async import Use
from cutile.compile.driver import Compiled
from cutile.errors import ArgumentError, LaunchError, as_text
from cutile.frontend.signature import Signature
from cutile.launch.arguments import Checked
from cutile.launch.fastpath import define
from cutile.launch.views import Grid, PointingView, TiledView, View

if TYPE_CHECKING:
    from cuda_async import Storage
    from cutile.frontend.parameters import Parameter


def refuse_disagreement(signature: Signature, checked: Sequence[Any]) -> None:
    """Compare the extents that share a name.

    Args:
        signature: the kernel's.
        checked: its checked arguments.

    Raises:
        ArgumentError: two differ; names both arguments and both axes.
    """
    for name, position, axis, other, other_axis in signature.agreements:
        first_view, second_view = checked[position], checked[other]
        if first_view.shape[axis] != second_view.shape[other_axis]:
            first_name, second_name = signature.parameters[position].title, signature.parameters[other].title
            raise ArgumentError(
                f"{signature.name}: the extent {name!r} is {first_view.shape[axis]} along axis {axis} of argument "
                f"{first_name!r} (shape {first_view.shape}), but {second_view.shape[other_axis]} along axis "
                f"{other_axis} of argument {second_name!r} (shape {second_view.shape})"
            )


def launch_grid(kernel: str, requested: Grid | None, outputs: Sequence[tuple[str, TiledView]]) -> Grid:
    """The grid to launch.

    Args:
        kernel: its name, for errors.
        requested: the grid that the caller gave; None if it is to be inferred.
        outputs: the name and the view of each `Mut` argument.

    Raises:
        LaunchError: partitions disagree with one another or with the grid given, or there is neither.
    """
    inferred: Grid | None = None
    source = ""
    for name, view in outputs:
        if not view.exact:
            continue
        grid = view.grid
        if inferred is not None and grid != inferred:
            unit = "tile blocks" if view.map is not None else "tiles"
            raise LaunchError(
                f"{kernel}: the partitions disagree on the grid: {source!r} has {inferred} {unit}, "
                f"{name!r} has {grid}. Give each tile block one tile of every output; what all of them add to "
                "is a ct.Global, or an output with one element for each, summed afterwards. An output that all tile "
                "blocks write is a ct.SharedMut parameter, with grid=... in the call"
            )
        inferred, source = grid, name
    prefixes = [(name, view.grid) for name, view in outputs if not view.exact]
    if requested is None:
        if inferred is None:
            reason = "no partition tells it"
            if prefixes:
                reason = (
                    f"{prefixes[0][0]!r} is a partial-coverage partition, which takes any prefix of {prefixes[0][1]}"
                )
            raise LaunchError(f"{kernel}: launch grid required: {reason}; give it with .grid((x, y, z))")
        requested = inferred
    elif inferred is not None and requested != inferred:
        raise LaunchError(
            f"{kernel}: the launch grid {requested} does not match the inferred partition grid {inferred} of "
            f"{source!r}, of which each tile has one tile block. Leave .grid(...) out, or cut {source!r} into as many "
            "tiles; a block goes through several tiles of what it reads in a loop. An output that all tile blocks "
            "write is a ct.SharedMut parameter, whose launch passes the tensor itself"
        )
    for name, limit in prefixes:
        for axis in range(3):
            if requested[axis] > limit[axis]:
                raise LaunchError(
                    f"{kernel}: the launch grid {requested} exceeds the partial-coverage partition grid {limit} of "
                    f"{name!r} on axis {axis}"
                )
    return requested


def check_grid(kernel: str, grid: object) -> Grid:
    """Check a caller's grid, an integer or a tuple; return three extents.

    Raises:
        LaunchError: it is no tuple of one to three positive integers, or has more than 2**31 - 1 tile blocks.
    """
    items = cast("Sequence[Any]", grid if isinstance(grid, tuple | list) else (grid,))
    try:
        extents = [operator.index(item) for item in items if not isinstance(item, bool)]
    except TypeError:
        extents = []
    if len(extents) != len(items) or not 1 <= len(extents) <= 3:
        raise LaunchError(f"{kernel}: the grid must be 1 to 3 integers, got {as_text(grid)}")
    if min(extents) < 1:
        raise LaunchError(f"{kernel}: the grid {as_text(tuple(extents))} is empty: every extent must be at least 1")
    x, y, z = (*extents, 1, 1, 1)[:3]
    if x * y * z >= 2**31:
        raise LaunchError(
            f"{kernel}: the grid {as_text((x, y, z))} has {as_text(x * y * z)} tile blocks, more than 2**31 - 1"
        )
    return x, y, z


def kernel_uses(parameters: Sequence[Parameter], checked: Sequence[Checked]) -> list[Use]:
    """The bytes that a launch reads and writes, by argument."""
    uses: list[Use] = []
    for parameter, argument in zip(parameters, checked, strict=True):
        name = parameter.title
        if isinstance(argument, View | TiledView):
            uses.append(Use(name, argument.storage, argument.writes, *argument.byte_range))
        if isinstance(argument, PointingView):
            pointed = enumerate(argument.others)
            uses += [Use(f"{name}[{i}]", x.storage, argument.others_written, *x.byte_range) for i, x in pointed]
    return uses


def _overlap(a: Use, b: Use) -> bool:
    """Whether two uses have a byte in common.

    Addresses are compared: each import of another library's tensor has a storage of its own.
    """
    assert a.stop is not None
    assert b.stop is not None
    first, second = cast("Storage", a.storage), cast("Storage", b.storage)
    if first is not second and (first.device is not second.device or first.without_memory or second.without_memory):
        return False
    start, stop = first.address + a.start, first.address + a.stop
    return max(start, second.address + b.start) < min(stop, second.address + b.stop)


def refuse_overlaps(kernel: str, uses: Sequence[Use]) -> None:
    """Refuse arguments that overlap in memory where the kernel writes one of them.

    Raises:
        ArgumentError: names both arguments.
    """
    for position, use in enumerate(uses):
        for other in uses[:position]:
            if (use.write or other.write) and _overlap(other, use):
                raise ArgumentError(
                    f"{kernel}: arguments {other.argument!r} and {use.argument!r} share memory, and the kernel writes "
                    "it; pass a copy (dup()) for one of the two"
                )


Condition = Callable[[Sequence[Checked], Grid], bool]


def verify(compiled: Compiled, names: Sequence[str], checked: Sequence[Checked], grid: Grid) -> None:
    """Check a launch.

    Raises:
        LaunchError: a precondition fails, or a tile index leaves its tensor; names the argument, the index, the extent.
    """
    condition = condition_of(compiled, names)
    if condition is not None and not condition(checked, grid):
        _explain(compiled, names, checked, grid)


def condition_of(compiled: Compiled, names: Sequence[str]) -> Condition | None:
    """A predicate of checked arguments and grid: whether a launch passes all checks.

    None for a kernel without checks.
    """
    if "condition" not in compiled.memo:
        compiled.memo["condition"] = _condition_of_all(compiled, names)
    return compiled.memo["condition"]


def _condition_of_all(compiled: Compiled, names: Sequence[str]) -> Condition | None:
    """Define the predicate of arguments `c` and grid `g` from text. For a product:

    def holds(c, g):
        key = (g, c[0].shape, c[1].shape, c[2].shape)
        if key == last[0]:
            return True
        try:
            passes = (c[0].shape[0] + 127) // 128 - 1 < (c[1].shape[0] + 127) // 128 and ...
        except ZeroDivisionError:
            return False
        if passes:
            last[0] = key
        return passes

    A launch with the arguments of the last one that passed evaluates nothing. `last` needs no lock: it is read and set
    as one object, and another thread's key only costs an evaluation.
    """
    conditions = [placed(text, names) for text in compiled.facts.get("preconditions", ())]
    conditions += [_condition(check, names) for check in compiled.facts.get("launch_checks", ())]
    if not conditions:
        return None
    # An extent's whole shape stands in the key: shapes are tuples that exist, so that the key costs no indexing.
    inputs = sorted({text for condition in conditions for text in re.findall(r"c\[\d+\](?:\.shape)?", condition)})
    lines = [
        "def holds(c, g):",
        f"    key = (g, {''.join(f'{text}, ' for text in inputs)})",
        "    if key == last[0]:",
        "        return True",
        "    try:",
        f"        passes = {' and '.join(conditions)}",
        "    except ZeroDivisionError:",
        "        return False",
        "    if passes:",
        "        last[0] = key",
        "    return passes",
    ]
    # A list holds the last key: generated text can set an item of it without `nonlocal`.
    return define(f"verify {compiled.program.function.name}", "\n".join(lines) + "\n", {"last": [None]})


def _condition(check: Any, names: Sequence[str]) -> str:
    """One index check as text.

    It holds if a guard is false, or if both ends of the index are in range. A guard is true if the loop around the
    access has iterations.
    """
    _, _, _, low, high, count, guards, _ = check
    ends = [f"{placed(low, names)} >= 0"] if low else []
    ends += [f"{placed(high, names)} < {placed(count, names)}"] if high else []
    false_guards = [f"not {placed(guard, names)}" for guard in guards]
    return f"({' or '.join([*false_guards, '(' + ' and '.join(ends) + ')'])})"


class _Placer(ast.NodeTransformer):
    """Puts a launch's checked arguments and grid in place of a kernel's parameters."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [self.visit(each) for each in node.args]
        return node  # the function stays: `min` or `max`, even if a parameter has that name

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "grid":
            return ast.Subscript(ast.Name("g"), node.slice)
        return ast.Subscript(self.visit(node.value), node.slice)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Subscript(ast.Name("c"), ast.Constant(self._names.index(node.id)))


def placed(text: str, names: Sequence[str]) -> str:
    """Rewrite an expression of parameters to one of arguments `c` and grid `g`."""
    return f"({ast.unparse(_Placer(names).visit(ast.parse(text, mode='eval')))})"


def _value(text: str, names: Sequence[str], checked: Sequence[Checked], grid: Grid) -> Any:
    return eval(placed(text, names), {"c": checked, "g": grid})


def _explain(compiled: Compiled, names: Sequence[str], checked: Sequence[Checked], grid: Grid) -> None:
    """Evaluate the checks one by one; raise LaunchError for the first that fails."""
    kernel = compiled.program.function.name
    for text in compiled.facts.get("preconditions", ()):
        try:
            fault = "" if _value(text, names, checked, grid) else "failed"
        except ZeroDivisionError:
            fault = "divides by 0"
        if fault:
            raise LaunchError(f"{kernel}: the precondition {text} {fault}: {_operands(text, names, checked, grid)}")
    try:
        _explain_indices(compiled, names, checked, grid)
    except ZeroDivisionError:
        raise LaunchError(f"{kernel}: an index divides by 0, which is an argument or an extent of one") from None


def _explain_indices(compiled: Compiled, names: Sequence[str], checked: Sequence[Checked], grid: Grid) -> None:
    """Raise LaunchError for the first index check that fails.

    The fields of a check are described in `cutile/passes/bounds.py`.
    """
    kernel = compiled.program.function.name
    for name, axis, step, low, high, count, guards, place in compiled.facts.get("launch_checks", ()):
        if not all(_value(guard, names, checked, grid) for guard in guards):
            continue
        source_line = f"\n{place}" if place else ""
        tiles = _value(count, names, checked, grid)
        if axis < -1:  # -2: a check whose name is the whole message
            if _value(high, names, checked, grid) >= tiles:
                raise LaunchError(f"{kernel}: {name} (the grid is {grid}){source_line}")
            continue
        if axis < 0:  # -1: an index of something else than a tensor's axis; `name` describes it
            ends = [_value(end, names, checked, grid) for end in (low, high) if end]
            value = next((each for each in ends if not 0 <= each < tiles), None)
            if value is None:
                continue
            raise LaunchError(f"{kernel}: {name} is {value}; it must be at least 0 and below {tiles}{source_line}")
        extent = getattr(checked[names.index(name)], "shape", ())[axis]
        tiling = f"argument {name!r} has {tiles} tiles of {step} along axis {axis} (extent {extent})"
        if low and (first := _value(low, names, checked, grid)) < 0:
            raise LaunchError(
                f"{kernel}: a tile index goes down to {first}, and {tiling}; the first one is 0{source_line}"
            )
        if high and (last := _value(high, names, checked, grid)) >= tiles:
            reason = "" if str(high) == str(last) else f" ({high})"
            raise LaunchError(
                f"{kernel}: a tile index goes up to {last}{reason}, and {tiling}"
                + (f"; the last one is {tiles - 1}" if tiles else "")
                + source_line
            )


def _operands(text: str, names: Sequence[str], checked: Sequence[Checked], grid: Grid) -> str:
    """The operands of a failed comparison with their values: `x.shape[0] is 100`."""
    tree = ast.parse(text, mode="eval")
    operands = [ast.unparse(each) for each in ast.walk(tree) if isinstance(each, ast.Subscript)]
    # The name in `x.shape[0]` is no operand of its own.
    operands += [each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id + ".shape" not in text]
    return ", ".join(f"{each} is {_value(each, names, checked, grid)}" for each in dict.fromkeys(operands))
