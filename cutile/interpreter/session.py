"""The session of one tile block: the language's meaning while it runs.

A `for` statement over `range` is a loop of the kernel, whose variable is a tile. Elsewhere a compiled kernel takes
`range` for a tuple of constants:

    [t[i] for i in range(3)]   sum(range(4))   zip(range(2), tiles)   [*range(3)]

Python makes the same call for both, so the place of the call in the source text tells them apart.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from cutile.dtypes import i32, i64, u64
from cutile.errors import KernelError, KernelNameError, KernelTypeError, Location, closest
from cutile.frontend import elsewhere, operators
from cutile.frontend.calls import call, handler_of
from cutile.frontend.expressions import attribute_of
from cutile.frontend.families.mapped import MintedRange, OwnedRange
from cutile.frontend.families.shape import with_new_axes
from cutile.frontend.frame import Frame, Suppressed
from cutile.frontend.plain_numbers import counted, interval_of, weak
from cutile.frontend.registry import BUILTINS
from cutile.frontend.source import column_of
from cutile.frontend.statements import is_singleton
from cutile.frontend.values import Method, Range, describe, plain
from cutile.interpreter.live import EagerBuilder, EagerValue, LiveObject, LiveTile, to_live, to_meaning
from cutile.ir import TileType, Value
from cutile.language.variable import DeviceVariable

_Place = tuple[int, int, int, int]
"""First line and column, last line and column, as in a node of syntax."""
_TUPLE_FUNCTIONS = {"all", "any", "enumerate", "list", "reversed", "set", "sorted", "sum", "tuple", "zip"}
"""Functions of Python over items that are known when a kernel is compiled."""


def is_constant_range(depth: int) -> bool:
    """Whether a call of `range` stands where a compiled kernel takes it for constants.

    Args:
        depth: the number of frames between this function and the one in whose text the call stands.
    """
    return _is_among(_ranges, depth + 1)


def is_pattern(depth: int) -> bool:
    """Whether a comparison is that of `case value:`.

    Args:
        depth: as for `is_constant_range`.
    """
    return _is_among(_patterns, depth + 1)


def _is_among(places: Callable[[str], frozenset[_Place]], depth: int) -> bool:
    """Whether the running expression of a frame is at one of the places in its file."""
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    code = frame.f_code
    line, end_line, column, end = list(code.co_positions())[frame.f_lasti // 2]  # an instruction has two bytes
    return (line, column, end_line, end) in places("".join(linecache.getlines(code.co_filename)))


@functools.lru_cache(maxsize=8)
def _ranges(text: str) -> frozenset[_Place]:
    """The places in which a call of `range` makes a tuple of constants."""
    places: set[_Place] = set()
    for node in _nodes(text):
        items: list[ast.expr] = []
        if isinstance(node, ast.comprehension):
            items = [node.iter]
        elif isinstance(node, ast.Starred):
            items = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TUPLE_FUNCTIONS:
            items = node.args
        places.update(_place_of(item) for item in items if isinstance(item, ast.Call))
    return frozenset(places)


@functools.lru_cache(maxsize=8)
def _patterns(text: str) -> frozenset[_Place]:
    """The places of the values in patterns."""
    return frozenset(_place_of(node) for node in _nodes(text) if isinstance(node, ast.MatchValue))


def _nodes(text: str) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):
        return


def _place_of(node: ast.expr | ast.pattern) -> _Place:
    assert node.end_lineno is not None, "it was parsed"
    assert node.end_col_offset is not None, "it was parsed"
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _no_variables(variable: DeviceVariable) -> int:
    raise KernelTypeError(f"{variable!r}: no launch says where it is")


@dataclass
class LiveFrame(Frame):
    """A frame whose places are lines of the running function, not nodes of its syntax.

    Attributes:
        addresses: gives the address of a device variable, in memory that the CPU reaches.
    """

    addresses: Callable[[DeviceVariable], int] = _no_variables

    def address_of(self, variable: DeviceVariable) -> Value:
        """The address as a computed value; a compiled kernel has a parameter for it."""
        return EagerValue(TileType(u64), np.array(self.addresses(variable), np.uint64), variable.__class__.__name__)

    def reach(self, tensor: Value, index: Sequence[Value], mask: Value | None, what: str, *, every: bool) -> None:
        """Check the indices of an access, as `EagerBuilder.reach` does.

        It happens here, since the operations of the access no longer have indices, but addresses and a mask.
        """
        builder = self.builder
        if isinstance(builder, EagerBuilder):
            builder.reach(tensor, index, mask, what, every=every)

    def locate(self, node: ast.AST | None = None) -> Location:
        """The line being run."""
        del node
        return current_place()


_NOWHERE = ast.Pass()  # the front end needs a node of syntax; `LiveFrame.locate` ignores it


class Session:
    """The kernel language while one tile block runs.

    Args:
        frame: the front end's state; its builder runs each operation at once.
    """

    def __init__(self, frame: LiveFrame) -> None:
        self._frame = frame

    @contextmanager
    def _here(self) -> Generator[Frame]:
        frame = self._frame
        with frame.at(_NOWHERE):
            try:
                yield frame
            except Suppressed:  # the errors of a function that was compiled, such as that of `reduce`
                errors = tuple(frame.compilation.report.errors)
                raise KernelError.together(frame.source.name, errors) from None

    def operation(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call one of the language's functions."""
        return self.call_value(function, args, kwargs)

    def method(self, owner: Any, name: str, args: Sequence[Any]) -> Any:
        """Call a method of a device variable."""
        return self.call_value(Method(owner, name), args, {})

    def call_value(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function, bound method or builtin that the front end handles."""
        handler = handler_of(function)
        with self._here() as frame:
            if handler is None:
                frame.type_error(f"{describe(function)} cannot be called in a kernel")
            name = getattr(function, "__name__", None) or getattr(function, "name", "call")
            meanings = {key: to_meaning(value) for key, value in kwargs.items()}
            return to_live(self, call(frame, handler, str(name), [to_meaning(each) for each in args], meanings))

    def attribute(self, owner: Any, name: str) -> Any:
        """`owner.name`."""
        with self._here() as frame:
            return to_live(self, attribute_of(frame, owner, name, _NOWHERE))

    def brackets(self, value: Value, items: Sequence[Any]) -> Any:
        """`value[items]`."""
        with self._here() as frame:
            return to_live(self, with_new_axes(frame, value, items))

    def binary(self, kind: type[ast.AST], left: Any, right: Any) -> Any:
        """`left <op> right`."""
        with self._here() as frame:
            return to_live(self, operators.binary(frame, kind, to_meaning(left), to_meaning(right)))

    def comparison(self, kind: type[ast.AST], left: Any, right: Any) -> Any:
        """`left <comparison> right`, called by the operator of a live object."""
        if kind is ast.Eq and _never_equal(plain(to_meaning(left)), plain(to_meaning(right))) and is_pattern(2):
            return False  # `case value:`, where `==` is refused
        with self._here() as frame:
            return to_live(self, operators.comparison(frame, kind, to_meaning(left), to_meaning(right)))

    def unary(self, kind: type[ast.AST], value: Any) -> Any:
        """`<op> value`."""
        with self._here() as frame:
            return to_live(self, operators.unary(frame, kind, to_meaning(value)))

    def truth(self, value: Any) -> bool:
        """`value` as a condition."""
        with self._here() as frame:
            condition: Any = operators.truth(frame, value)
            return bool(condition.array) if isinstance(condition, EagerValue) else bool(condition)

    def is_singleton(self, value: Any, constant: bool) -> bool:
        """Whether `case True:` or `case False:` matches."""
        with self._here() as frame:
            return self.truth(is_singleton(frame, value, constant, _NOWHERE))

    def is_instance(self, value: Any, kind: Any) -> bool:
        """`isinstance(value, kind)`; of a live object, the front end decides."""
        if isinstance(value, LiveTile | LiveObject):
            return self.call_value(isinstance, (value, _of_python(kind)), {})
        return isinstance(value, _of_python(kind))

    def iterate(self, meaning: Any) -> Iterator[Any]:
        """The live values of the variable of a `for` loop over `meaning`."""
        if not isinstance(meaning, Range):
            with self._here() as frame:
                frame.type_error(f"a loop over {describe(meaning)}")
        bounds = [int(each.array) if isinstance(each, EagerValue) else int(each) for each in _bounds(meaning)]
        if bounds[2] == 0:
            return  # no iterations, as in a compiled loop, which cannot raise Python's error
        dtypes = [each.tile.dtype for each in _bounds(meaning) if isinstance(each, Value)]
        interval = counted(*(interval_of(self._frame, each) for each in _bounds(meaning)))
        # Where the dtypes differ, an i32 becomes the other one, as in a compiled loop.
        dtype = next((each for each in dtypes if each is not i32), i32 if interval.fits(i32) else i64)
        for position in range(*bounds):
            with self._here() as frame:
                value: Any = operators.materialize(frame, position, dtype)
                if dtype in (i32, i64):
                    weak(frame, value, interval)
                if isinstance(meaning, MintedRange | OwnedRange):
                    value = meaning.mint(frame, value)
            yield to_live(self, value)

    def builtins(self) -> dict[str, Callable[..., Any]]:
        """Python's functions with another meaning on tiles, such as `min` and `max`.

        Of Python's classes only `range` is replaced: others stand in annotations and in unions such as `int | float`.
        """
        functions = {
            function.__name__: self._builtin(function)
            for function in BUILTINS
            if getattr(function, "__module__", "") == "builtins" and function is not print
            if function is range or not isinstance(function, type)
        }
        return {**functions, "isinstance": self.is_instance}

    def _builtin(self, function: Any) -> Callable[..., Any]:
        def either(*args: Any, **kwargs: Any) -> Any:
            values = (*args, *kwargs.values())
            is_live = any(to_meaning(each) is not each for each in values)
            if function is range and not is_live:
                is_live = not is_constant_range(1)
            return self.call_value(function, args, kwargs) if is_live else function(*args, **kwargs)

        either.__name__ = function.__name__
        either.of_python = function  # type: ignore[attr-defined]  # where a kernel passes it on, as to `reduce`
        return either


def _never_equal(left: Any, right: Any) -> bool:
    """Whether `left` differs from the value of a pattern, whatever it holds."""
    if isinstance(left, EagerValue) and isinstance(left.type, TileType):
        return left.tile.is_scalar and not operators.is_tile_or_number(right)
    return True  # a tensor, a partition or the like


def _of_python(kind: Any) -> Any:
    """The classes of `isinstance`, with `range` itself in place of its replacement."""
    if isinstance(kind, tuple):
        return tuple(_of_python(each) for each in kind)  # pyright: ignore[reportUnknownVariableType]
    return getattr(kind, "of_python", kind)


def _bounds(meaning: Range) -> tuple[Any, Any, Any]:
    return meaning.start, meaning.stop, meaning.step


_PACKAGE = str(Path(__file__).resolve().parent.parent)
_HIDDEN = (_PACKAGE, str(Path(linecache.__file__).parent / "contextlib.py"))
"""Beginnings of files whose frames are not the kernel's: this package, and `contextlib`, which runs `Session._here`."""


def current_place() -> Location:
    """The line of the kernel that runs now, with the columns of the expression."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return _place(frame.f_code, frame.f_lasti, frame.f_lineno)


@contextmanager
def misspelt_names() -> Generator[None]:
    """Raise the compiler's error for an undefined name, or one that a module lacks.

    It takes the place of NameError and AttributeError.

    Raises:
        KernelNameError: with the line, and the nearest name.
    """
    try:
        yield
    except NameError as error:
        if isinstance(error, KernelNameError) or error.name is None or error.__traceback__ is None:
            raise
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        if last.tb_frame.f_code.co_filename.startswith(_HIDDEN):  # a defect of this package
            raise
        guesses = closest(error.name, [*last.tb_frame.f_locals, *last.tb_frame.f_globals])
        remedy = f"Did you mean {guesses[0]!r}?" if guesses else "Define it before, or import it."
        place = _place(last.tb_frame.f_code, last.tb_lasti, last.tb_lineno)
        raise KernelNameError(str(error), place, remedy) from error
    except AttributeError as error:
        if not isinstance(error.obj, ModuleType) or error.name is None:
            raise
        trace, kernel_trace = error.__traceback__, error.__traceback__
        while trace is not None:
            if not trace.tb_frame.f_code.co_filename.startswith(_HIDDEN):  # not the `__getattr__` of this package
                kernel_trace = trace
            trace = trace.tb_next
        assert kernel_trace is not None, "it was raised in the kernel"
        place = _place(kernel_trace.tb_frame.f_code, kernel_trace.tb_lasti, kernel_trace.tb_lineno)
        remedy = elsewhere.in_module(error.obj, error.name)
        raise KernelNameError(f"module {error.obj.__name__!r} has no {error.name!r}", place, remedy) from error


def _place(code: CodeType, instruction: int, number: int) -> Location:
    line, column, end_line, end_column = _span(code, instruction, number)
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    if end_line != line or end_column <= column:
        column, end_column = len(text) - len(text.lstrip()), len(text)
    else:
        column, end_column = column_of(text, column), column_of(text, end_column)
    return Location(code.co_filename, line, column, end_column, text, code.co_name)


def _span(code: CodeType, instruction: int, line: int) -> tuple[int, int, int, int]:
    """Lines and columns of the running expression, the columns in bytes."""
    for position, span in enumerate(code.co_positions()):
        if position * 2 == instruction:
            first, last, column, end = span
            if None not in (first, last, column, end):
                return first or line, column or 0, last or line, end or 0
    return line, 0, line, 0
