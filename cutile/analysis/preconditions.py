"""Preconditions: facts about arguments, which passes use and launches verify.

    x.shape[0] % 64 == 0        divisible
    x.shape[1] == y.shape[0]    comparisons (==, <, <=, >, >=) of sums and products with constants
    n <= 1000

They are Python over the kernel's parameters: extents of tensors, integer scalars, generics that are constants.
"""

from __future__ import annotations

import ast

from cutile.analysis.affine import Affine, Atom, Facts, extent_atom, scalar_atom
from cutile.errors import KernelTypeError
from cutile.ir import Function, TileType, Value


def read_preconditions(function: Function, facts: Facts) -> None:
    """Add the preconditions of a function to the facts.

    Raises:
        KernelTypeError: one is no comparison of launch-known integers; shows it.
    """
    texts: tuple[str, ...] = function.facts.get("preconditions", ())
    comparisons = [(_comparison(function, text), text) for text in texts]
    for tree, _ in comparisons:  # first: the comparisons below read extents as multiples of their divisors
        divisibility = _divisibility(tree)
        if divisibility is not None:
            text, divisor = divisibility
            facts.divisors[text] = max(facts.divisors.get(text, 1), divisor)
    reader = _Reader(function, facts)
    for tree, text in comparisons:
        left, right = reader.read(tree.left, text), reader.read(tree.comparators[0], text)
        if left is None or right is None:
            continue
        match tree.ops[0]:
            case ast.Eq():
                if isinstance(tree.left, ast.Name | ast.Subscript) and left.terms and left != right:
                    facts.equate(Atom(ast.unparse(tree.left)), right)
                facts.add(left - right)
                facts.add(right - left)
            case ast.Lt():
                facts.add(left - right + 1)
            case ast.LtE():
                facts.add(left - right)
            case ast.Gt():
                facts.add(right - left + 1)
            case _:  # >=
                facts.add(right - left)


def _comparison(function: Function, text: str) -> ast.Compare:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        tree = None
    kinds = (ast.Eq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], kinds):
        return tree
    raise KernelTypeError(
        f"{function.name}: the precondition {text!r} is no comparison",
        remedy="Write one comparison of launch-known integers: 'x.shape[0] % 64 == 0', 'n <= 1000'.",
    )


def _divisibility(tree: ast.Compare) -> tuple[str, int] | None:
    """`(text, divisor)` of a comparison such as `x.shape[0] % 64 == 0`."""
    left, right = tree.left, tree.comparators[0]
    if not isinstance(tree.ops[0], ast.Eq) or not isinstance(right, ast.Constant) or right.value != 0:
        return None
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(left.right, ast.Constant):
        divisor = left.right.value
        if isinstance(divisor, int) and divisor > 0 and isinstance(left.left, ast.Name | ast.Subscript):
            return ast.unparse(left.left), divisor
    return None


class _Reader:
    """Reads one side of a comparison."""

    def __init__(self, function: Function, facts: Facts) -> None:
        self._function = function
        self._facts = facts
        self._parameters = {value.name: value for value in function.parameters}

    def read(self, node: ast.expr, text: str) -> Affine | None:
        """An expression as a sum; None for other numbers, such as products of extents."""
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return Affine(number)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                x = self.read(inner, text)
                return None if x is None else x.times(-1)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self.read(left, text), self.read(right, text), text)
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=axis)
            ):
                return self._extent(name, axis, text)
            case ast.Name(id=name) if name in self._parameters:
                return self._scalar(self._parameters[name], text)
            case _:
                raise self._refused(ast.unparse(node), text)

    def _refused(self, what: str, text: str) -> KernelTypeError:
        names = ", ".join(self._parameters)
        return KernelTypeError(
            f"{self._function.name}: the precondition {text!r} has {what!r}, which the launch does not know",
            remedy=f"Preconditions are about extents (x.shape[0]) and integer scalars of the parameters: {names}.",
        )

    def _binary(self, op: ast.operator, x: Affine | None, y: Affine | None, text: str) -> Affine | None:
        if not isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Mod):
            raise self._refused(type(op).__name__, text)
        if isinstance(op, ast.FloorDiv | ast.Mod) and y is not None and y.known == 0:
            raise KernelTypeError(
                f"{self._function.name}: the precondition {text!r} divides by zero", remedy="Divide by another number."
            )
        if x is None or y is None:
            return None
        match op:
            case ast.Add():
                return x + y
            case ast.Sub():
                return x - y
            case ast.Mult() if x.known is not None:
                return y.times(x.known)
            case ast.Mult() if y.known is not None:
                return x.times(y.known)
            case ast.FloorDiv() if y.known is not None and y.known > 0:
                return x.floor_div(y.known)
            case _:
                return None

    def _extent(self, name: str, axis: object, text: str) -> Affine:
        tensor = self._parameters.get(name)
        if tensor is None or isinstance(tensor.type, TileType) or not isinstance(axis, int):
            raise self._refused(f"{name}.shape[{axis}]", text)
        if not 0 <= axis < tensor.tensor.rank:
            raise self._refused(f"{name}.shape[{axis}]", text)
        extent = tensor.tensor.shape[axis]
        return Affine(extent) if extent is not None else self._facts.symbol(extent_atom(name, axis))

    def _scalar(self, value: Value, text: str) -> Affine:
        if not isinstance(value.type, TileType) or not value.type.dtype.is_integer:
            raise self._refused(value.name, text)
        return self._facts.symbol(scalar_atom(value.name, value.type.dtype))
