"""The printer's interface, expressions and names of intrinsics, for all emitters.

No variable of generated code has the name of an intrinsic. These names are read from the text of `intrinsics/`, so that
writing code does not import Numba.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cutile.backend.interface import ParameterKind
from cutile.conversion import NEAREST_EVEN, NEGATIVE_INF, POSITIVE_INF, ZERO
from cutile.dtypes import STORAGE_DTYPES, DTypeLike
from cutile.ir.core import Block, Op, Value
from cutile.ops.registry import OPS, family

_FOLDER = Path(__file__).parents[1] / "intrinsics"

_RENAMED = {"pow": "power", "round": "round_even"}
FUNCTIONS = {name: _RENAMED.get(name, name) for name, op in OPS.items() if family(op) == "math"}
"""The intrinsic of each operation of the family `math`: it has the operation's name, unless Python has such a function.
"""


def _public_names(module: str) -> tuple[str, ...]:
    """`__all__` of a file of `intrinsics/`, read from its text."""
    text = (_FOLDER / f"{module}.py").read_text(encoding="utf-8")
    assignments = (node for node in ast.parse(text).body if isinstance(node, ast.Assign))
    return next(ast.literal_eval(node.value) for node in assignments if ast.unparse(node.targets[0]) == "__all__")


def _imported_names() -> Iterator[str]:
    """The names that `intrinsics/__init__.py` imports or assigns, without its tables.

    The names of tables are in capitals.
    """
    for node in ast.parse((_FOLDER / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    yield from _public_names((node.module or "").rpartition(".")[2])
                elif not alias.name.isupper():
                    yield alias.name
        elif isinstance(node, ast.Assign):
            yield from (name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name))


SUFFIXES = {NEAREST_EVEN: "", POSITIVE_INF: "_upward", NEGATIVE_INF: "_downward", ZERO: "_to_zero"}
"""The suffix of a conversion's name, by its rounding."""


def _conversions() -> Iterator[str]:
    """The names of the conversions, as `intrinsics/cast.py` defines them.

    First come conversions of types that are only stored. Then come conversions that round in one direction, saturate,
    truncate or keep the bits.
    """
    for dtype in STORAGE_DTYPES:
        if dtype.format is not None:
            yield f"{dtype.name}_value"
            yield from (f"{dtype.name}_bits{suffix}" for suffix in SUFFIXES.values())
    for suffix in filter(None, SUFFIXES.values()):
        yield from (f"f16_round{suffix}", f"bf16_round{suffix}")
        yield from (f"f32{suffix}", f"f64{suffix}", f"f64{suffix}_unsigned")
    for bits in (8, 16, 32, 64):
        yield from (f"saturated_i{bits}", f"saturated_u{bits}", f"as_i{bits}", f"as_u{bits}")
        yield from (f"truncated_i{bits}", f"truncated_u{bits}")
    yield from ("as_f32", "as_f64", "nearest", "truncated", "whole_to_odd", "whole_to_odd_unsigned")


CONVERSIONS = frozenset(_conversions())
"""The conversions that generated code may import: the keys of `CONVERSIONS` in `intrinsics/cast.py`."""


RESERVED: frozenset[str] = frozenset((*_imported_names(), *FUNCTIONS.values(), *CONVERSIONS, "range"))
"""The names that generated code may import, and `range`, which it calls: no variable has one of these."""


ATOM, UNARY, PRODUCT, SUM, SHIFT, AND, XOR, OR, COMPARE, NOT, CHOICE = range(11)
"""How tightly an expression binds, tightest first."""


@dataclass(frozen=True)
class Text:
    """An expression, and how tightly it binds."""

    text: str
    binds: int = ATOM

    def within(self, binds: int) -> str:
        """The text, in parentheses where it binds more loosely than `binds`."""
        return self.text if self.binds <= binds else f"({self.text})"


class Printer(Protocol):
    """The printer of `module.py`, as the emitters of the families see it."""

    def operand(self, value: Value) -> Text:
        """The expression of an operand: its name, or the expression that computes it."""
        ...

    def name(self, value: Value) -> str:
        """The variable of a value."""
        ...

    @property
    def count(self) -> int:
        """The number of lines written so far."""
        ...

    def constant(self, value: Value) -> float | None:
        """The number, where a value is a constant."""
        ...

    def alias(self, value: Value, name: str) -> None:
        """Let a value be an existing variable."""
        ...

    def own_parameter(self, kind: ParameterKind, x: Value | None = None, axis: int = 0) -> str:
        """The variable of one of the kernel's parameters, such as an extent.

        It is a parameter of the argument `x`, or of the grid if `x` is None.
        """
        ...

    def use(self, *names: str) -> str:
        """Note that the file needs these intrinsics; returns the first name."""
        ...

    def line(self, text: str, op: Op | None = None) -> None:
        """Write a statement."""
        ...

    def indented(self) -> Any:
        """A `with` block one level deeper."""
        ...

    @property
    def chained(self) -> Mapping[Op, str]:
        """The branches of the chain that is being written.

        A branch behind the others has the name of a variable, which says whether the branch runs. The other branches
        have an empty name.
        """
        ...

    def in_chain(self, chain: Sequence[Op], behind: Sequence[Op]) -> AbstractContextManager[str]:
        """A `with` block in which `chained` is `chain`.

        Its value is the variable which says whether the branches `behind` the others run.
        """
        ...

    def block(self, block: Block) -> None:
        """Write the operations of a nested block, without its terminator."""
        ...

    def process_function(self, name: str, kind: str) -> str:
        """The parameter with the address of a function of this process.

        Such as "sgemm" of the BLAS, or "say" for prints. `kind` is the parameter's machine type.
        """
        ...

    def site(self, kind: str, facts: Any) -> int:
        """The number of a print or an assertion within the file; `facts` are kept for it."""
        ...


Expression = Callable[[Printer, Any], Text]
"""Writes an operation with one result as an expression."""

Statement = Callable[[Printer, Any], None]
"""Writes an operation as statements."""


def call(printer: Printer, function: str, *arguments: Text | str) -> Text:
    """A call of an intrinsic."""
    texts = [argument if isinstance(argument, str) else argument.text for argument in arguments]
    return Text(f"{printer.use(function)}({', '.join(texts)})")


def machine_type(dtype: DTypeLike) -> str:
    """The machine type of a value.

    16-bit floats are f32, bools are bytes, and floats that are only stored are their bits.
    """
    if not dtype.computes:
        return f"u{dtype.bits}"
    return "f32" if dtype.is_half else "u8" if dtype.is_bool else dtype.name


def element_type(dtype: DTypeLike) -> str:
    """The machine type of an element of a tensor."""
    return f"u{dtype.bits}" if dtype.is_half else machine_type(dtype)


def rounded(printer: Printer, text: Text, dtype: DTypeLike) -> Text:
    """A freshly computed value brought back to its dtype.

    16-bit floats are rounded, small integers wrap.
    """
    if dtype.is_half:
        return call(printer, f"{dtype.name}_round", text)
    if dtype.is_integer and dtype.bits < 64:  # Numba computes these in 64 bits
        return call(printer, dtype.name, text)
    return text


def infix(left: Text, operator: str, right: Text, binds: int) -> Text:
    """A binary operator that groups to the left."""
    # `a - (b - c)` needs its parentheses: on the right, an operator that binds as tightly gets them.
    return Text(f"{left.within(binds)} {operator} {right.within(binds - 1)}", binds)
