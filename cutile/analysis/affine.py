"""Integers known when a kernel is launched, as sums of multiples of atoms.

`x.shape[0] - 64 * (n // 64) + 3`.

An atom is an extent, a launch argument, an extent of the grid, or a quotient, minimum or maximum of such sums. Its text
is Python over the kernel's parameters, for people to read; `count_of` makes data of it, for launches. Its range holds
for every launch. All arithmetic is exact; `Affine.fits` says whether the kernel's own could wrap.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cutile.dtypes import DTypeLike
from cutile.ir import Attribute, Constant, Op, Value
from cutile.ops.arith import Add, Mul, Sub
from cutile.ops.cast import Convert
from cutile.ops.create import Iota
from cutile.ops.memory import MAX_EXTENT
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress, TensorStride
from cutile.ops.shape import Broadcast, Reshape


@dataclass(frozen=True)
class Atom:
    """A number that is not taken apart.

    `low` and `high` hold always; None is unbounded.
    """

    text: str
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class Affine:
    """A constant and multiples of atoms, in the order of their texts."""

    constant: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    @staticmethod
    def of(atom: Atom, factor: int = 1) -> Affine:
        """A multiple of an atom."""
        return Affine(0, ((atom, factor),)) if factor else Affine()

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.constant + other, self.terms)
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        kept = sorted(((atom, factor) for atom, factor in factors.items() if factor), key=lambda each: each[0].text)
        return Affine(self.constant + other.constant, tuple(kept))

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (-other if isinstance(other, int) else other.times(-1))

    def times(self, factor: int) -> Affine:
        """A multiple."""
        if not factor:
            return Affine()
        return Affine(self.constant * factor, tuple((atom, each * factor) for atom, each in self.terms))

    def floor_div(self, divisor: int) -> Affine:
        """The quotient rounded down, for a positive divisor.

        What it divides comes out of the atom.
        """
        whole = Affine(0, tuple((atom, each // divisor) for atom, each in self.terms if each % divisor == 0))
        rest = Affine(self.constant, tuple((atom, each) for atom, each in self.terms if each % divisor))
        if not rest.terms:
            return whole + rest.constant // divisor
        bounds = [None if bound is None else bound // divisor for bound in (rest.low, rest.high)]
        return whole + Affine.of(Atom(f"{rest.operand} // {divisor}", *bounds))

    @property
    def known(self) -> int | None:
        """The number, where there are no atoms."""
        return self.constant if not self.terms else None

    @property
    def low(self) -> int | None:
        """What it is never below."""
        return _bound(self, [atom.low if factor > 0 else atom.high for atom, factor in self.terms])

    @property
    def high(self) -> int | None:
        """What it is never above."""
        return _bound(self, [atom.high if factor > 0 else atom.low for atom, factor in self.terms])

    def fits(self, dtype: DTypeLike) -> bool:
        """Whether it certainly is a value of an integer dtype."""
        signed = dtype.is_signed
        least = -(2 ** (dtype.bits - 1)) if signed else 0
        most = 2 ** (dtype.bits - signed) - 1
        return self.low is not None and self.high is not None and least <= self.low and self.high <= most

    @property
    def text(self) -> str:
        """Python that computes it."""
        made = ""
        for atom, factor in self.terms:
            name = f"({atom.text})" if " " in atom.text and abs(factor) != 1 else atom.text
            part = name if abs(factor) == 1 else f"{abs(factor)} * {name}"
            part = f"({part})" if factor < 0 and " // " in part else part
            made += (" - " if factor < 0 else " + ") + part
        if self.constant or not made:
            made += (" - " if self.constant < 0 else " + ") + str(abs(self.constant))
        return made[3:] if made.startswith(" + ") else "-" + made[3:]

    @property
    def operand(self) -> str:
        """The text, in parentheses where an operator beside it would take it apart."""
        return f"({self.text})" if " " in self.text or self.text.startswith("-") else self.text


def _bound(sum_of: Affine, bounds: Iterable[int | None]) -> int | None:
    total = sum_of.constant
    for (_, factor), bound in zip(sum_of.terms, bounds, strict=True):
        if bound is None:
            return None
        total += factor * bound
    return total


def extent_atom(name: str, axis: int) -> Atom:
    """The extent of a tensor parameter."""
    return Atom(f"{name}.shape[{axis}]", 1, MAX_EXTENT)


def scalar_atom(name: str, dtype: DTypeLike) -> Atom:
    """An integer parameter."""
    signed = dtype.is_signed
    return Atom(name, -(2 ** (dtype.bits - 1)) if signed else 0, 2 ** (dtype.bits - signed) - 1)


def multiple(atom: Atom, divisor: int) -> Affine:
    """An atom that `divisor` divides, as that many times the quotient."""
    if divisor == 1:
        return Affine.of(atom)
    low = None if atom.low is None else -(-atom.low // divisor)
    high = None if atom.high is None else atom.high // divisor
    return Affine.of(Atom(f"{atom.text} // {divisor}", low, high), divisor)


def ceil_div(x: Affine, divisor: int) -> Affine:
    """The quotient rounded up."""
    return (x + (divisor - 1)).floor_div(divisor)


class Facts:
    """What is known to hold of every launch.

    Numbers that are not above zero, what divides, what is equal.

    Attributes:
        divisors: by the text of an extent or a scalar, what divides it.
    """

    def __init__(self) -> None:
        self.divisors: dict[str, int] = {}
        self._same: dict[str, Affine] = {}
        self._not_positive: list[Affine] = []

    def symbol(self, atom: Atom) -> Affine:
        """An extent or a scalar, in terms of what it equals or what divides it."""
        found = self._same.get(atom.text)
        return multiple(atom, self.divisors.get(atom.text, 1)) if found is None else found

    def equate(self, atom: Atom, other: Affine) -> None:
        """Note that an extent or a scalar equals another number."""
        self._same[atom.text] = other

    def add(self, not_positive: Affine) -> None:
        """Note that a number is zero or below."""
        self._not_positive.append(not_positive)

    def at_most(self, x: Affine, y: Affine) -> bool:
        """Whether `x <= y` certainly.

        The ranges of atoms tell, or one of the facts together with them.
        """
        difference = x - y
        candidates = [difference, *(difference - fact for fact in self._not_positive)]
        return any(each.high is not None and each.high <= 0 for each in candidates)

    def smaller(self, x: Affine, y: Affine) -> Affine:
        """The smaller of two numbers."""
        return self._pick("min", x, y)

    def larger(self, x: Affine, y: Affine) -> Affine:
        """The larger of two numbers."""
        return self._pick("max", x, y)

    def _pick(self, function: str, x: Affine, y: Affine) -> Affine:
        choose = min if function == "min" else max
        for a, b in ((x, y), (y, x)):
            if self.at_most(a, b):
                return a if function == "min" else b
        lows, highs = [[each for each in pair if each is not None] for pair in ((x.low, y.low), (x.high, y.high))]
        # a minimum has an upper bound where either has one, and a lower bound where both have
        low = choose(lows) if len(lows) == 2 or (function == "max" and lows) else None
        high = choose(highs) if len(highs) == 2 or (function == "min" and highs) else None
        picked = Affine.of(Atom(f"{function}({x.text}, {y.text})", low, high))
        for each in (x, y):
            self.add(picked - each if function == "min" else each - picked)
        return picked


_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}


def count_of(text: str, names: Sequence[str]) -> Attribute:
    """The integer that a text stands for (`Affine.text`), as `Executable` says.

    Args:
        text: Python over the kernel's parameters: sums, multiples, quotients, minima and maxima.
        names: of the parameters, in order.

    Raises:
        ValueError: it is something else.

    Example:
        >>> count_of("min(n - 1, grid[0])", ["x", "n"])
        ('min', ('-', ('argument', 1), 1), ('grid', 0))
    """

    def read(node: ast.expr) -> Attribute:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.Name(id=name) if name in names:
                return ("argument", names.index(name))
            case ast.Subscript(value=ast.Name(id="grid"), slice=ast.Constant(value=int() as axis)):
                return ("grid", axis)
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=int() as axis)
            ) if name in names:
                return ("extent", names.index(name), axis)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return ("-", 0, read(operand))
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                return (_OPERATORS[type(operator)], read(left), read(right))
            case ast.Call(func=ast.Name(id="min" | "max" as function), args=[left, right], keywords=[]):
                return (function, read(left), read(right))
            case _:
                raise ValueError(f"{text!r} is no sum, quotient, minimum or maximum of what a launch knows")

    return read(ast.parse(text, mode="eval").body)


# -- addresses that lie side by side ---------------------------------------------------------------

ACCESS_BYTES = 16
"""The widest access of one thread."""
LEAST_BYTES = 4
"""The narrowest access that serves several elements."""


@dataclass(frozen=True)
class Growth:
    """How a tile of whole numbers grows along an axis.

    Attributes:
        step: from element to element.
        divisor: a power of two that divides the first one, at most `ACCESS_BYTES`.
    """

    step: int
    divisor: int


def access_run(op: Op, definitions: Mapping[Value, Op]) -> tuple[int, int] | None:
    """Along which axis an access's lanes lie side by side, and how many are one.

    None where each element is an access of its own.

        index = rows[:, None], iota((64,))[None, :]         # the addresses of gather(x, index):
        address(x) + 2 * (index[0] * stride + index[1])     # neighbours along axis 1, at multiples of 16 bytes

    What is asked of an address is by how much it grows along an axis, and which power of two divides it where it
    begins.
    """
    if not isinstance(op, LoadPointer | StorePointer) or op.order != "weak" or op.pointers.tile.is_scalar:
        return None
    return run_of(op.pointers, (op.pad if isinstance(op, LoadPointer) else op.value).tile.dtype.bits // 8, definitions)


def run_of(pointers: Value, size: int, definitions: Mapping[Value, Op]) -> tuple[int, int] | None:
    """The axis along which addresses lie side by side, and how many are one access.

    None where it is one by one.

    Args:
        pointers: a tile of addresses.
        size: bytes of an element.
        definitions: the operation behind each value.
    """
    shape = pointers.tile.shape
    for axis in reversed(range(len(shape))):
        growth = _growth(pointers, axis, definitions)
        if growth is None or growth.step != size or shape[axis] == 1:
            continue
        width = growth.divisor // size
        while width > 1 and shape[axis] % width:
            width //= 2
        return (axis, width) if width > 1 and width * size >= LEAST_BYTES else None
    return None


def _lowest_bit(number: int) -> int:
    """The power of two that divides a number, at most `ACCESS_BYTES`."""
    return min(number & -number, ACCESS_BYTES) if number else ACCESS_BYTES


def _growth(value: Value, axis: int, definitions: Mapping[Value, Op]) -> Growth | None:
    """How a value grows along an axis; None where it is not known."""
    op = definitions.get(value)
    shape = value.tile.shape
    if isinstance(op, Constant):
        return Growth(0, _lowest_bit(int(op.value)))
    if isinstance(op, Iota):
        return Growth(1, ACCESS_BYTES)
    if isinstance(op, Convert) and value.tile.dtype.kind in ("int", "uint") and op.x.tile.dtype.kind in ("int", "uint"):
        return _growth(op.x, axis, definitions) if value.tile.dtype.bits >= op.x.tile.dtype.bits else None
    if isinstance(op, Broadcast):
        if op.x.tile.is_scalar:
            return _growth(op.x, 0, definitions)
        inner = _growth(op.x, axis, definitions)
        return Growth(0, inner.divisor if inner else 1) if op.x.tile.shape[axis] == 1 else inner
    if isinstance(op, Reshape) and not op.x.tile.is_scalar:
        wide = [at for at, extent in enumerate(shape) if extent != 1]
        source = [at for at, extent in enumerate(op.x.tile.shape) if extent != 1]
        same = [shape[at] for at in wide] == [op.x.tile.shape[at] for at in source]
        if same and axis in wide:
            return _growth(op.x, source[wide.index(axis)], definitions)
    if isinstance(op, Add | Sub):
        return _sum(op, axis, definitions)
    if isinstance(op, Mul):
        return _product(op, axis, definitions)
    if isinstance(op, TensorAddress):
        return Growth(0, _lowest_bit(op.x.tensor.alignment))
    if isinstance(op, TensorStride):
        tensor = op.x.tensor
        known = tensor.strides[op.axis]
        return Growth(0, _lowest_bit(tensor.alignment * 8 // tensor.dtype.bits if known is None else known))
    return Growth(0, 1) if value.tile.is_scalar or shape[axis] == 1 else None


def _sum(op: Add | Sub, axis: int, definitions: Mapping[Value, Op]) -> Growth | None:
    x, y = (_growth(each, axis, definitions) for each in (op.x, op.y))
    if x is None or y is None:
        return None
    return Growth(x.step - y.step if isinstance(op, Sub) else x.step + y.step, min(x.divisor, y.divisor))


def _product(op: Mul, axis: int, definitions: Mapping[Value, Op]) -> Growth | None:
    x, y = (_growth(each, axis, definitions) for each in (op.x, op.y))
    if x is None or y is None:
        return None
    divisor = min(x.divisor * y.divisor, ACCESS_BYTES)
    if not x.step and not y.step:
        return Growth(0, divisor)
    for growing, other in ((x, op.y), (y, op.x)):
        factor = _number(other, definitions)
        if factor is not None:
            return Growth(growing.step * factor, divisor)
    return None


def _number(value: Value, definitions: Mapping[Value, Op]) -> int | None:
    """The constant that all elements of a tile are."""
    op = definitions.get(value)
    if isinstance(op, Broadcast):
        return _number(op.x, definitions)
    return int(op.value) if isinstance(op, Constant) else None
