"""Handlers that are derived from declarations, or composed of other operations.

An element-wise operation has a derived handler: operands of one type, markers, one operation. It follows from the
declaration (`cutile/language/declare.py`), and from the classes of `cutile/ops/` that are spelled with its name: one
class that rounds to nearest even, and for some operations a second one for other roundings.

A composed handler is written in the language itself:

    @composed
    def sigmoid(ct: Language, x: Term) -> Any:
        small = ct.exp(-abs(x))
        return ct.select(x < 0, small, 1.0) / (small + 1.0)

A composition is written once, for every backend and the interpreter. The location of its operations is the line of the
kernel that calls it. Values are terms, which have Python's operators; `ct` has the operations of the language.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from cutile.dtypes import DTypeLike, f32
from cutile.errors import IRError
from cutile.frontend.expect import marker_of
from cutile.frontend.frame import Frame
from cutile.frontend.operators import binary, comparison, materialize, unary, unify
from cutile.frontend.registry import BUILTINS, OPERATIONS, Handler
from cutile.frontend.values import converted, is_tile, noun
from cutile.ir.core import Op, Value
from cutile.language import markers
from cutile.language.declare import DECLARED, FLOATS, Declaration, Kinds
from cutile.ops import OPS
from cutile.ops.cast import Convert

PROMISES = ("overflow",)
"""Markers that change no result. Integers wrap with or without them, and a promise that holds changes nothing."""


def require_kind(frame: Frame, tile: Value, kinds: Kinds, what: str) -> Value:
    """The tile, if it is of one of the kinds of dtype."""
    if tile.tile.dtype.kind in kinds.names:
        return tile
    if kinds is FLOATS and is_tile(tile) and not tile.tile.dtype.is_bool:
        remedy = f"Convert first: {converted(tile, 'f32', 'x')}."
    elif _has_operator(what):
        remedy = f"The operators take any numbers; {what} takes {kinds.words}."
    else:
        remedy = f"Convert first: {converted(tile, 'f32' if kinds is FLOATS else 'i32', 'x')}."
    wanted = "a scalar" if tile.tile.is_scalar else "a tile"
    got = f"{noun(tile)} of {tile.tile.dtype}" if tile.tile.is_scalar else str(tile.type)
    frame.type_error(f"{what}: expected {wanted} of {kinds.words}, got {got}", remedy=remedy)


def _has_operator(name: str) -> bool:
    """Whether Python has an operator for a function, as `+` for `addi`."""
    spellings = [word for op in OPS.values() if name in op.spelled for word in op.spelled]
    return any(not word.isidentifier() for word in spellings)


def operands(frame: Frame, values: list[Any], kinds: Kinds, what: str) -> list[Value]:
    """Tiles of one type, whose dtype is of one of the kinds.

    Numbers alone are f32 where floats are wanted.
    """
    dtype = f32 if kinds is FLOATS and not any(map(is_tile, values)) else None
    return [require_kind(frame, tile, kinds, what) for tile in unify(frame, values, what, dtype)]


def spelled(name: str) -> tuple[type[Op], type[Op] | None]:
    """The operation of a function of the language, and that of other roundings.

    Raises:
        IRError: none in `cutile/ops/` is spelled so, or several are.
    """
    ops = [op for op in OPS.values() if name in op.spelled]
    plain = [op for op in ops if "rounding" not in op.fields]
    rounded = [op for op in ops if "rounding" in op.fields]
    if len(plain) != 1 or len(rounded) > 1:
        raise IRError(f"{name}: expected one class in cutile/ops/ that is spelled so, got {[op.name for op in ops]}")
    return plain[0], rounded[0] if rounded else None


def _fact(mark: Any) -> str | bool:
    """The attribute of a marker in the IR: a rounding's word, else a bool."""
    return mark.value if isinstance(mark, markers.rounding) else mark.name == "ENABLED"


class _Derived:
    """The handler of an element-wise operation.

    It reads the declaration at its first call, since a process calls few of the handlers.
    """

    def __init__(self, declaration: Declaration, takes: Kinds) -> None:
        self.__name__ = declaration.name
        self._declaration, self._takes = declaration, takes

    @cached_property
    def _ops(self) -> tuple[type[Op], type[Op] | None]:
        return spelled(self.__name__)

    @cached_property
    def _signature(self) -> inspect.Signature:
        parameters = self._declaration.signature.parameters.values()
        return inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters])

    @cached_property
    def _choices(self) -> dict[str, Any]:
        parameters = self._signature.parameters.values()
        return {each.name: getattr(markers, each.name) for each in parameters if each.default is not each.empty}

    @property
    def __signature__(self) -> inspect.Signature:
        frame = inspect.Parameter("frame", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return inspect.Signature([frame, *self._signature.parameters.values()])

    def __call__(self, frame: Frame, *args: Any, **kwargs: Any) -> Any:
        (plain, rounded), name = self._ops, self.__name__
        call = self._signature.bind(*args, **kwargs)
        call.apply_defaults()
        marks = {key: marker_of(frame, call.arguments.pop(key), kind, name) for key, kind in self._choices.items()}
        facts = {key: _fact(mark) for key, mark in marks.items() if key not in PROMISES}
        tiles = operands(frame, list(call.arguments.values()), self._takes, name)
        if rounded is None or set(facts.values()) <= {markers.rounding.NEAREST_EVEN.value, False}:
            return frame.emit(plain(*tiles, **{key: fact for key, fact in facts.items() if key in plain.fields}))
        if tiles[0].tile.dtype.bits == 16:
            frame.type_error(
                f"{name}: a rounding other than NEAREST_EVEN, and ftz, are for f32 and f64, got {tiles[0].type}",
                remedy=f"Convert first: {converted(tiles[0], 'f32', 'x')}.",
            )
        return frame.emit(rounded(*tiles, **facts))


def derive(declaration: Declaration) -> Handler:
    """The handler of an element-wise operation."""
    assert declaration.takes is not None
    return _Derived(declaration, declaration.takes)


class Term:
    """A value of the front end, with the operators that it has in a kernel."""

    __hash__ = None  # type: ignore[assignment]  # == gives a term

    def __init__(self, frame: Frame, value: Any) -> None:
        self.frame = frame
        self.value = value

    @property
    def dtype(self) -> DTypeLike:
        """The element type of a tile."""
        return self.value.tile.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a tile."""
        return self.value.tile.shape

    def astype(self, dtype: DTypeLike) -> Term:
        """The elements of a tile converted."""
        return self if self.dtype is dtype else Term(self.frame, self.frame.emit(Convert(x=self.value, dtype=dtype)))

    def _binary(self, kind: type[ast.AST], left: Any, right: Any) -> Term:
        return Term(self.frame, binary(self.frame, kind, value_of(left), value_of(right)))

    def _compare(self, kind: type[ast.AST], other: Any) -> Term:
        return Term(self.frame, comparison(self.frame, kind, self.value, value_of(other)))

    def __add__(self, other: Any) -> Term:
        return self._binary(ast.Add, self, other)

    def __radd__(self, other: Any) -> Term:
        return self._binary(ast.Add, other, self)

    def __sub__(self, other: Any) -> Term:
        return self._binary(ast.Sub, self, other)

    def __rsub__(self, other: Any) -> Term:
        return self._binary(ast.Sub, other, self)

    def __mul__(self, other: Any) -> Term:
        return self._binary(ast.Mult, self, other)

    def __rmul__(self, other: Any) -> Term:
        return self._binary(ast.Mult, other, self)

    def __truediv__(self, other: Any) -> Term:
        return self._binary(ast.Div, self, other)

    def __rtruediv__(self, other: Any) -> Term:
        return self._binary(ast.Div, other, self)

    def __floordiv__(self, other: Any) -> Term:
        return self._binary(ast.FloorDiv, self, other)

    def __mod__(self, other: Any) -> Term:
        return self._binary(ast.Mod, self, other)

    def __and__(self, other: Any) -> Term:
        return self._binary(ast.BitAnd, self, other)

    def __or__(self, other: Any) -> Term:
        return self._binary(ast.BitOr, self, other)

    def __xor__(self, other: Any) -> Term:
        return self._binary(ast.BitXor, self, other)

    def __lshift__(self, other: Any) -> Term:
        return self._binary(ast.LShift, self, other)

    def __rshift__(self, other: Any) -> Term:
        return self._binary(ast.RShift, self, other)

    def __lt__(self, other: Any) -> Term:
        return self._compare(ast.Lt, other)

    def __le__(self, other: Any) -> Term:
        return self._compare(ast.LtE, other)

    def __gt__(self, other: Any) -> Term:
        return self._compare(ast.Gt, other)

    def __ge__(self, other: Any) -> Term:
        return self._compare(ast.GtE, other)

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return self._compare(ast.Eq, other)

    def __ne__(self, other: object) -> Term:  # type: ignore[override]
        return self._compare(ast.NotEq, other)

    def __neg__(self) -> Term:
        return Term(self.frame, unary(self.frame, ast.USub, self.value))

    def __invert__(self) -> Term:
        return Term(self.frame, unary(self.frame, ast.Invert, self.value))

    def __abs__(self) -> Term:
        return Term(self.frame, BUILTINS[abs](self.frame, self.value))


class Language:
    """The operations of the language on terms: `ct.exp(x)`."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def __getattr__(self, name: str) -> Callable[..., Term]:
        handler = OPERATIONS[name]

        def call(*args: Any, **kwargs: Any) -> Term:
            named = {key: value_of(each) for key, each in kwargs.items()}
            return Term(self.frame, handler(self.frame, *map(value_of, args), **named))

        return call

    def term(self, value: Any, dtype: DTypeLike | None = None) -> Term:
        """A tile or a number as a term."""
        return Term(self.frame, materialize(self.frame, value_of(value), dtype))

    def emit(self, op: Op) -> Term:
        """The result of an operation."""
        return Term(self.frame, self.frame.emit(op))


def value_of(term: Any) -> Any:
    """The value of a term, also within a tuple; anything else as it is."""
    if isinstance(term, Term):
        return term.value
    return tuple(map(value_of, cast("tuple[Any, ...]", term))) if type(term) is tuple else term


def wide(term: Term) -> Term:
    """A tile of floats of fewer than 32 bits in f32; any other as it is."""
    return term.astype(f32) if term.dtype.is_float and term.dtype.bits < 32 else term


def composed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register the handler of an operation that is composed of others.

    If its declaration says which numbers it takes, the operands become tiles of one type. The function gets tiles of
    f16 and bf16 in f32, and its result is rounded once.
    """
    return _registered(function, wide)


def composed_of_bits(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register the handler of a composition that reads the bits of its operands.

    The function gets tiles of their own dtype. In f32 an f16 has other bits and other neighbours.
    """
    return _registered(function, _itself)


def _itself(term: Term) -> Term:
    return term


def _registered(function: Callable[..., Any], widen: Callable[[Term], Term]) -> Callable[..., Any]:
    """Register a composition's handler; `widen` prepares each of its operands."""
    name = function.__name__
    declaration = DECLARED[name]
    takes = declaration.takes
    signature = inspect.signature(function)
    parameters = [item.replace(annotation=item.empty) for item in signature.parameters.values()][1:]

    def handler(frame: Frame, *args: Any, **kwargs: Any) -> Any:
        ct = Language(frame)
        if takes is None:
            terms = [Term(frame, value) if is_tile(value) else value for value in args]
            named = {key: Term(frame, value) if is_tile(value) else value for key, value in kwargs.items()}
            return value_of(function(ct, *terms, **named))
        bound = inspect.Signature(parameters).bind(*args, **kwargs)
        numbers = f32 if not any(map(is_tile, bound.arguments.values())) else None
        operands = unify(frame, list(bound.arguments.values()), name, numbers)
        tiles = [Term(frame, require_kind(frame, tile, takes, name)) for tile in operands]
        result: Term = function(ct, *map(widen, tiles))
        narrow = result.dtype.is_float and result.dtype is not tiles[0].dtype
        return value_of(result.astype(tiles[0].dtype) if narrow else result)

    handler.__name__ = name
    handler.__module__ = function.__module__
    frame = inspect.Parameter("frame", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    handler.__signature__ = inspect.Signature([frame, *parameters])  # type: ignore[attr-defined]
    OPERATIONS[name] = handler
    return handler
