"""Integers known when a kernel is launched, as sums of multiples of atoms.

`x.shape[0] - 64 * (n // 64) + 3` is such a sum, of the atoms `x.shape[0]` and `n // 64`.

An atom is an extent, a launch argument, an extent of the grid, or a product, quotient, minimum or maximum of sums. Its
text is Python over the kernel's parameters, for people to read; `count_of` turns it into data, for launches. Its range
holds for every launch. All arithmetic here is exact; `Affine.fits` says whether the kernel's own arithmetic could wrap.

`access_run` finds out how addresses grow along an axis of a tile.
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
    """A launch-known number that is no sum.

    Attributes:
        text: Python that computes it.
        low, high: its bounds in every launch, both included; None: no bound is known.
    """

    text: str
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class Affine:
    """A constant and multiples of atoms.

    Attributes:
        terms: each atom with its factor, in the order of the texts, so that equal sums are equal values.
    """

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
        terms = sorted(((atom, factor) for atom, factor in factors.items() if factor), key=lambda term: term[0].text)
        return Affine(self.constant + other.constant, tuple(terms))

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (-other if isinstance(other, int) else other.times(-1))

    def times(self, factor: int) -> Affine:
        """The product with a number."""
        if not factor:
            return Affine()
        return Affine(self.constant * factor, tuple((atom, each * factor) for atom, each in self.terms))

    def floor_div(self, divisor: int) -> Affine:
        """The quotient rounded down, for a positive divisor.

        Multiples of the divisor are divided one by one; the rest becomes one atom.
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
        """A lower bound; None: unknown."""
        return _bound(self, [atom.low if factor > 0 else atom.high for atom, factor in self.terms])

    @property
    def high(self) -> int | None:
        """An upper bound; None: unknown."""
        return _bound(self, [atom.high if factor > 0 else atom.low for atom, factor in self.terms])

    def fits(self, dtype: DTypeLike) -> bool:
        """Whether the number is in the range of an integer dtype in every launch."""
        signed = dtype.is_signed
        least = -(2 ** (dtype.bits - 1)) if signed else 0
        most = 2 ** (dtype.bits - signed) - 1
        return self.low is not None and self.high is not None and least <= self.low and self.high <= most

    @property
    def text(self) -> str:
        """Python that computes it."""
        text = ""
        for atom, factor in self.terms:
            name = f"({atom.text})" if " " in atom.text and abs(factor) != 1 else atom.text
            part = name if abs(factor) == 1 else f"{abs(factor)} * {name}"
            part = f"({part})" if factor < 0 and " // " in part else part  # -a // b is (-a) // b
            text += (" - " if factor < 0 else " + ") + part
        if self.constant or not text:
            text += (" - " if self.constant < 0 else " + ") + str(abs(self.constant))
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    @property
    def operand(self) -> str:
        """The text, in parentheses unless it is a single name or number."""
        return f"({self.text})" if " " in self.text or self.text.startswith("-") else self.text


def _bound(affine: Affine, bounds: Iterable[int | None]) -> int | None:
    """The sum with a bound in place of each atom; None where one is missing."""
    total = affine.constant
    for (_, factor), bound in zip(affine.terms, bounds, strict=True):
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
    """An atom that `divisor` divides, as `divisor` times the quotient."""
    if divisor == 1:
        return Affine.of(atom)
    low = None if atom.low is None else -(-atom.low // divisor)
    high = None if atom.high is None else atom.high // divisor
    return Affine.of(Atom(f"{atom.text} // {divisor}", low, high), divisor)


def ceil_div(x: Affine, divisor: int) -> Affine:
    """The quotient rounded up."""
    return (x + (divisor - 1)).floor_div(divisor)


class Facts:
    """Facts that hold in every launch: inequalities, equalities and divisors.

    Attributes:
        divisors: by the text of an extent or a scalar, a number that divides it.
    """

    def __init__(self) -> None:
        self.divisors: dict[str, int] = {}
        self._same: dict[str, Affine] = {}
        self._not_positive: list[Affine] = []

    def symbol(self, atom: Atom) -> Affine:
        """An extent or a scalar: the number that it equals, or a multiple of its divisor."""
        equal = self._same.get(atom.text)
        return multiple(atom, self.divisors.get(atom.text, 1)) if equal is None else equal

    def equate(self, atom: Atom, other: Affine) -> None:
        """Note that an extent or a scalar equals another number."""
        self._same[atom.text] = other

    def add(self, not_positive: Affine) -> None:
        """Note that a number is zero or below in every launch."""
        self._not_positive.append(not_positive)

    def at_most(self, x: Affine, y: Affine) -> bool:
        """Whether `x <= y` certainly, by the ranges of atoms and at most one fact.

        With more facts the search would grow with their combinations.
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
        # A minimum has an upper bound if either number has one, and a lower bound if both have.
        low = choose(lows) if len(lows) == 2 or (function == "max" and lows) else None
        high = choose(highs) if len(highs) == 2 or (function == "min" and highs) else None
        picked = Affine.of(Atom(f"{function}({x.text}, {y.text})", low, high))
        for each in (x, y):
            self.add(picked - each if function == "min" else each - picked)
        return picked


_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}


def count_of(text: str, names: Sequence[str]) -> Attribute:
    """The integer of a text (`Affine.text`), in the form that `Executable` describes.

    Args:
        text: Python over the kernel's parameters: sums, multiples, quotients, minima and maxima.
        names: the names of the parameters, in order.

    Raises:
        ValueError: the text has another form.

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


# -- addresses side by side ------------------------------------------------------------------------

ACCESS_BYTES = 16
"""The widest access of one thread."""
LEAST_BYTES = 4
"""Bytes of the narrowest access that serves several elements."""


@dataclass(frozen=True)
class Growth:
    """How a tile of integers grows along an axis.

    Attributes:
        step: the difference from element to element.
        divisor: a power of two that divides the first element, at most `ACCESS_BYTES`.
    """

    step: int
    divisor: int


def access_run(op: Op, definitions: Mapping[Value, Op]) -> tuple[int, int] | None:
    """The axis along which lanes lie side by side, and how many make one access.

    None where each lane is an access of its own.

        index = rows[:, None], iota((64,))[None, :]         # the addresses of gather(x, index):
        address(x) + 2 * (index[0] * stride + index[1])     # neighbours along axis 1, at multiples of 16 bytes

    Lanes of one access have addresses that grow by the bytes of an element, and begin at a multiple of its width.
    """
    if not isinstance(op, LoadPointer | StorePointer) or op.order != "weak" or op.pointers.tile.is_scalar:
        return None
    return run_of(op.pointers, (op.pad if isinstance(op, LoadPointer) else op.value).tile.dtype.bits // 8, definitions)


def run_of(pointers: Value, size: int, definitions: Mapping[Value, Op]) -> tuple[int, int] | None:
    """The axis along which addresses lie side by side, and the elements of one access.

    None where each element is an access of its own.

    Args:
        pointers: a tile of addresses.
        size: bytes of an element.
        definitions: the operation that makes each value.
    """
    shape = pointers.tile.shape
    growths: Growths = {}
    for axis in reversed(range(len(shape))):
        growth = _growth(pointers, axis, definitions, growths)
        if growth is None or growth.step != size or shape[axis] == 1:
            continue
        width = growth.divisor // size
        while width > 1 and shape[axis] % width:
            width //= 2
        return (axis, width) if width > 1 and width * size >= LEAST_BYTES else None
    return None


def _lowest_bit(number: int) -> int:
    """The largest power of two that divides a number, at most `ACCESS_BYTES`."""
    return min(number & -number, ACCESS_BYTES) if number else ACCESS_BYTES


Growths = dict[tuple[Value, int], Growth | None]
"""The growths of values along axes that were computed so far: several sums may share an operand."""


def _growth(value: Value, axis: int, definitions: Mapping[Value, Op], growths: Growths) -> Growth | None:
    """How a value grows along an axis; None where it is not known."""
    if (value, axis) not in growths:
        growths[value, axis] = _new_growth(value, axis, definitions, growths)
    return growths[value, axis]


def _new_growth(value: Value, axis: int, definitions: Mapping[Value, Op], growths: Growths) -> Growth | None:
    op = definitions.get(value)
    shape = value.tile.shape
    if isinstance(op, Constant):
        return Growth(0, _lowest_bit(int(op.value)))
    if isinstance(op, Iota):
        return Growth(1, ACCESS_BYTES)  # from 0, which every power of two divides
    if isinstance(op, Convert) and value.tile.dtype.kind in ("int", "uint") and op.x.tile.dtype.kind in ("int", "uint"):
        # A narrow sum may wrap, at a multiple of 2**bits. All divisors divide that, so that it wraps between two runs.
        return _growth(op.x, axis, definitions, growths) if value.tile.dtype.bits >= op.x.tile.dtype.bits else None
    if isinstance(op, Broadcast):
        if op.x.tile.is_scalar:
            return _growth(op.x, 0, definitions, growths)
        inner = _growth(op.x, axis, definitions, growths)
        return Growth(0, inner.divisor if inner else 1) if op.x.tile.shape[axis] == 1 else inner
    if isinstance(op, Reshape) and not op.x.tile.is_scalar:
        wide = [at for at, extent in enumerate(shape) if extent != 1]
        source = [at for at, extent in enumerate(op.x.tile.shape) if extent != 1]
        same = [shape[at] for at in wide] == [op.x.tile.shape[at] for at in source]
        if same and axis in wide:
            return _growth(op.x, source[wide.index(axis)], definitions, growths)
    if isinstance(op, Add | Sub):
        return _sum(op, axis, definitions, growths)
    if isinstance(op, Mul):
        return _product(op, axis, definitions, growths)
    if isinstance(op, TensorAddress):
        return Growth(0, _lowest_bit(op.x.tensor.alignment))
    if isinstance(op, TensorStride):
        tensor = op.x.tensor
        known = tensor.strides[op.axis]
        return Growth(0, _lowest_bit(tensor.alignment * 8 // tensor.dtype.bits if known is None else known))
    return Growth(0, 1) if value.tile.is_scalar or shape[axis] == 1 else None


def _sum(op: Add | Sub, axis: int, definitions: Mapping[Value, Op], growths: Growths) -> Growth | None:
    x, y = (_growth(each, axis, definitions, growths) for each in (op.x, op.y))
    if x is None or y is None:
        return None
    return Growth(x.step - y.step if isinstance(op, Sub) else x.step + y.step, min(x.divisor, y.divisor))


def _product(op: Mul, axis: int, definitions: Mapping[Value, Op], growths: Growths) -> Growth | None:
    x, y = (_growth(each, axis, definitions, growths) for each in (op.x, op.y))
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
    """The constant that all elements of a tile have; None if there is none."""
    op = definitions.get(value)
    if isinstance(op, Broadcast):
        return _number(op.x, definitions)
    return int(op.value) if isinstance(op, Constant) else None
