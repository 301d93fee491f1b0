"""Prints and assertions of a kernel while it runs.

The text of a print is the same on every target, so values are formatted as both Python's `%` and C's `printf` can: `%g`
(six digits) for floats, `%d` for integers. Bools are True and False; tiles are in nested brackets.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cutile.dtypes import DTypeLike
from cutile.errors import KernelTypeError, cell_of
from cutile.ir import ANY_TILE, SCALAR_BOOL, SCALAR_INT, Constant, Effect, Op, Type, Value, attribute, operand, operands
from cutile.ops.arith import And
from cutile.ops.cast import Convert
from cutile.ops.compare import Eq, Ge, Gt, Le, Lt, Ne
from cutile.ops.reduce import ReduceMax, ReduceMin
from cutile.ops.shape import Reshape

_SPEC = r"(?P<align>[<>]?)(?P<sign>[+]?)(?P<zero>0?)(?P<width>\d*)(?P<digits>(\.\d+)?)(?P<kind>[dxXeEfgG]?)"
_KINDS = {"int": "d", "uint": "dxX", "float": "gfeEG", "bool": ""}


def percent_format(spec: str, dtype: DTypeLike) -> str:
    """The `%` format of a Python format spec for values of a dtype.

    Raises:
        KernelTypeError: kernels have no such format for the dtype.

    Example:
        >>> from cutile.dtypes import f32, i32
        >>> percent_format(".3f", f32), percent_format("", i32), percent_format("<5d", i32)
        ('%.3f', '%d', '%-5d')
    """
    fields = re.fullmatch(_SPEC, spec)
    kinds = _KINDS.get(dtype.kind)
    if kinds is None:
        raise KernelTypeError(
            f"print: {dtype} is for memory, and has no text", remedy="Convert it: ct.convert_tile(tile, ct.f32)."
        )
    if fields is None or (fields["kind"] and fields["kind"] not in kinds) or (spec and not kinds):
        known = f"[< or >][+][0][width][.digits] and one of {', '.join(kinds)}" if kinds else "none"
        raise KernelTypeError(f"print: no format {spec!r} for {dtype}", remedy=f"Known for {dtype}: {known}.")
    if fields["digits"] and not dtype.is_float:
        raise KernelTypeError(f"print: the format {spec!r} has digits after the point, but {dtype} has none")
    if fields["zero"] and fields["align"]:
        raise KernelTypeError(
            f"print: the format {spec!r} aligns what zeros fill up",
            remedy="Say one of them: < or >, or 0 before the width.",
        )
    if fields["sign"] and dtype.kind == "uint":
        raise KernelTypeError(f"print: the format {spec!r} has a sign, but {dtype} has none", remedy="Leave out the +.")
    left = "-" if fields["align"] == "<" else ""
    kind = fields["kind"] or (kinds[0] if kinds else "s")
    return f"%{left}{fields['sign']}{fields['zero']}{fields['width']}{fields['digits']}{kind}"


def brackets(shape: Sequence[int], position: int) -> tuple[str, str]:
    """The brackets and commas before and after the element at a row-major position.

    Example:
        >>> [brackets((2, 2), at) for at in range(4)]
        [('[[', ', '), ('', '], '), ('[', ', '), ('', ']]')]
    """
    opened, closed, size = 0, 0, 1
    for extent in reversed(shape):
        size *= extent
        opened += position % size == 0
        closed += (position + 1) % size == 0
    last = position + 1 == size
    return "[" * opened, "]" * closed + ("" if last else ", ")


def text_of(value: Any, spec: str) -> str:
    """A value as text, by the `%` format of its elements.

    Example:
        >>> text_of(np.float32([[0.5, 2], [1e9, np.nan]]), "%g")
        '[[0.5, 2], [1e+09, nan]]'
    """
    array = np.asarray(value)
    wide = array if array.dtype.kind in "biu" else array.astype(np.float64)  # `%g` takes no bf16
    items: list[Any] = wide.reshape(-1).tolist()
    if not array.shape:
        return spec % items[0]
    parts: list[str] = []
    for position, item in enumerate(items):
        before, after = brackets(array.shape, position)
        parts += [before, spec % item, after]
    return "".join(parts)


Place = tuple[str, str, int, str]
"""The place of an assertion: the kernel's name, its file, the line's number and the line's text."""


_FORMS = {"f32": "<f", "f64": "<d", "u64": "<Q"}
"""How the 64 bits of a report's number are read, by its dtype; other numbers are integers with a sign."""


def _number(word: int, dtype: str) -> int | float | bool:
    """A number of a report, from its 64 bits as an integer with a sign."""
    number = struct.unpack_from(_FORMS.get(dtype, "<q"), struct.pack("<q", word))[0]
    return bool(number) if dtype == "bool" else number


def failure_text(
    message: str,
    where: Place,
    block: Sequence[int | str],
    names: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    words: Sequence[int] = (),
) -> str:
    """The message of a failed assertion, with the numbers that its condition compares.

    Args:
        message: the text; a template for `%` where it shows numbers.
        where: the place of the assertion.
        block: the tile block's index.
        names: of the numbers that the condition compares. They follow the numbers of the message.
        dtypes: of all numbers.
        words: the 64 bits of each number, as an integer with a sign.

    Example:
        >>> print(failure_text("n must be even", ("halve", "k.py", 3, "assert n % 2 == 0"), (1, 0, 0)))
        halve: n must be even
          File "k.py", line 3, in tile block (1, 0, 0)
            assert n % 2 == 0
    """
    kernel, file, line, text = where
    place = ", ".join(map(str, block))
    file = cell_of(file) or f'File "{file}"'
    numbers = [_number(*each) for each in zip(words, dtypes, strict=True)]
    count = len(numbers) - len(names)
    message = message % tuple(numbers[:count]) if count else message
    equations = ", ".join(f"{name} = {number}" for name, number in zip(names, numbers[count:], strict=True))
    whole = f"{kernel}: {message}\n  {file}, line {line}, in tile block ({place})\n    {text}"
    return f"{whole}\n    with {equations}" if equations else whole


def print_text(pieces: Sequence[str], specs: Sequence[str], values: Sequence[Any]) -> str:
    """The text of a print: pieces with values between them."""
    parts = [pieces[0]]
    for value, spec, piece in zip(values, specs, pieces[1:], strict=True):
        parts += [text_of(value, spec), piece]
    return "".join(parts)


class Print(Op, name="print", spelled=("cuda_tile_print", "print_tko"), effect=Effect.OUTSIDE):
    """Print `pieces[0]`, `values[0]` in the format `specs[0]`, `pieces[1]`, and so on.

    Examples:
        >>> @ct.entry
        ... def count(y: ct.Mut):
        ...     print(f"block {ct.get_tile_block_id()[0]}: {y.load():.1f}")
        >>> y = ct.api.ones((2,)).sync()
        >>> _ = count(y.partition((2,))).sync()
        block 0: [1.0, 1.0]
    """

    values: tuple[Value, ...] = operands(ANY_TILE)
    pieces: tuple[str, ...] = attribute()
    specs: tuple[str, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        if not len(self.pieces) - 1 == len(self.specs) == len(self.values):
            raise KernelTypeError(
                f"print: {len(self.values)} values, {len(self.specs)} formats and {len(self.pieces)} pieces of text"
            )
        return ()

    def reference(self, *values: Any) -> str:
        return print_text(self.pieces, self.specs, values)


class Assert(Op, name="assert", spelled=("cuda_tile_assert",), effect=Effect.WRITE):
    """End the launch with an error that says `message` unless `condition` holds.

    Attributes:
        condition: a bool.
        values: the numbers that the message shows, at most `MAX_NUMBERS`. Floats are integers of the same bits.
        message: the text; if there are values, a template for `%` with a place for each.
        where: the place of the assertion.
        kinds: the dtypes of the values, before they became integers.

    Examples:
        >>> @ct.entry
        ... def halve(y: ct.Mut, n: ct.i32):
        ...     assert n % 2 == 0, "n must be even"
        ...     y.store(ct.broadcast(n // 2, y.shape))
        >>> y = ct.api.zeros((2,), ct.i32).sync()
        >>> halve(y.mut.partition((2,)), 3).sync()
        Traceback (most recent call last):
        cutile.errors.KernelAssertionError: halve: n must be even...
    """

    condition: Value = operand(SCALAR_BOOL)
    values: tuple[Value, ...] = operands(SCALAR_INT)
    message: str = attribute()
    where: Place = attribute()
    kinds: tuple[str, ...] = attribute(())

    def infer(self) -> tuple[Type, ...]:
        return ()


MAX_NUMBERS = 4  # numbers in the message of a failed assertion; its report has space for as many
_COMPARISONS = (Eq, Ne, Lt, Le, Gt, Ge)


def reported(op: Assert, definitions: Mapping[Value, Op]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Value, ...]]:
    """The numbers that a failed assertion reports: names, dtypes and values.

    They are as `failure_text` takes them: the numbers of the message come first, and have no names. A number that the
    message shows is not told again.
    """
    named = [each for each in zip(*subjects(op.condition, definitions), strict=True) if each[1] not in op.values]
    named = named[: MAX_NUMBERS - len(op.values)]
    dtypes = (*op.kinds, *(value.tile.dtype.name for _, value in named))
    return tuple(name for name, _ in named), dtypes, (*op.values, *(value for _, value in named))


def subjects(condition: Value, definitions: Mapping[Value, Op]) -> tuple[tuple[str, ...], tuple[Value, ...]]:
    """The integers that a condition compares: their names, and their values in the IR.

    For `0 <= k and k < n` these are k and n, in this order. Constants are left out: the kernel's text shows them.
    """
    compared: list[Value] = []
    pending, seen = [condition], {condition}
    while pending:
        op = definitions.get(pending.pop(0))  # from the front: in the order of the text
        if isinstance(op, And):
            parts = [part for part in dict.fromkeys((op.x, op.y)) if part not in seen]
            pending += parts
            seen.update(parts)
        elif isinstance(op, _COMPARISONS):
            compared += [each for each in (op.x, op.y) if _is_shown(each, definitions)]
    values = tuple(dict.fromkeys(compared))[:MAX_NUMBERS]
    is_index_and_count = len(values) == 2 and _is_check(condition, definitions)
    unnamed = ("index", "count") if is_index_and_count else tuple(f"number {i}" for i, _ in enumerate(values))
    return tuple(_name(each, definitions) or name for each, name in zip(values, unnamed, strict=True)), values


def _is_check(condition: Value, definitions: Mapping[Value, Op]) -> bool:
    """Whether it is the check of one index: `index >= 0` and `index < count`."""
    both = definitions.get(condition)
    if not isinstance(both, And):
        return False
    start, end = definitions.get(both.x), definitions.get(both.y)
    return isinstance(start, Ge) and isinstance(end, Lt) and start.x is end.x


def _name(value: Value, definitions: Mapping[Value, Op]) -> str:
    """The name of a value; for a nameless conversion, the name of its operand."""
    op = definitions.get(value)
    return op.x.name if isinstance(op, Convert) and not value.name else value.name


def _is_shown(value: Value, definitions: Mapping[Value, Op]) -> bool:
    tile = value.tile
    if not tile.is_scalar or not tile.dtype.is_integer:
        return False
    return not isinstance(definitions.get(value), Constant) and not _is_of_bools(value, definitions)


def _is_of_bools(value: Value, definitions: Mapping[Value, Op]) -> bool:
    """Whether an integer is a bool converted, or the result of any or all of bools."""
    op = definitions.get(value)
    while isinstance(op, ReduceMax | ReduceMin | Reshape):
        op = definitions.get(op.x)
    return isinstance(op, Convert) and op.x.tile.dtype.is_bool
