"""Which element types a kernel may use a function or operator with: its operation's, but for what is said here."""

from __future__ import annotations

import re
from collections.abc import Callable

from cutile.dtypes import DTYPES, EVERY_DTYPE, DTypeLike, f4e2m1fnx2, f32
from cutile.ir.core import Op
from cutile.ir.types import MutType, TensorType
from cutile.ops.atomic import takes
from cutile.ops.registry import family

OF_INDICES = ("check_tile", "check_index", "assume_within")
"""Operations on indices: they say nothing of elements, and touch none."""

Rule = Callable[[DTypeLike], bool]


def _integer(dtype: DTypeLike) -> bool:
    return dtype.kind in ("int", "uint")


def _float(dtype: DTypeLike) -> bool:
    return dtype.format is not None


def _any(dtype: DTypeLike) -> bool:
    return True


def _computed(dtype: DTypeLike) -> bool:
    return dtype in DTYPES


def _converted(dtype: DTypeLike) -> bool:
    return dtype is not f4e2m1fnx2


def _bits(dtype: DTypeLike) -> bool:
    return dtype.kind != "bool"


def _apart(dtype: DTypeLike) -> bool:
    return _bits(dtype) and dtype is not f4e2m1fnx2


def _bytes(dtype: DTypeLike) -> bool:
    return dtype is f4e2m1fnx2 or (_integer(dtype) and dtype.bits == 8)


RULES: dict[str, Rule] = {
    "bitcast": _bits,
    "constant": _converted,
    "convert_scalar": _converted,
    "convert_tile": _converted,
    "cuda_tile_assert": _computed,  # not 0, as a condition
    "cuda_tile_print": _computed,
    "exti": lambda dtype: dtype.kind == "bool" or (_integer(dtype) and dtype.bits < 64),
    "ftof": _float,
    "ftoi": _float,
    "iota": _integer,
    "itof": lambda dtype: dtype.kind == "bool" or _integer(dtype),
    "pack": _apart,
    "print_tko": _computed,
    "scan_sum": lambda dtype: dtype in DTYPES and dtype.kind != "bool",
    "select": _any,  # of what is chosen; the condition is bool
    "trunci": lambda dtype: _integer(dtype) and dtype.bits > 8,
    "unpack": _bytes,
    "Tile.astype": _converted,
    "Tile.pack": _apart,
    "Tile.unpack": lambda dtype: dtype is f4e2m1fnx2,
}
"""By the name of what takes other types than its operation does."""


def dtypes_of(name: str, op: type[Op]) -> tuple[DTypeLike, ...]:
    """The element types of a name's first operand, or of the tensor that it works on, as far as `op` is concerned."""
    if op.name in OF_INDICES or family(op) == "grid":
        return ()
    rule = RULES.get(name)
    if rule is not None:
        return tuple(filter(rule, EVERY_DTYPE))
    if family(op) == "atomic":
        return tuple(dtype for dtype in EVERY_DTYPE if _updated(name, dtype))
    constraints = [each.constraint for each in op.fields.values() if each.kind == "operand"]
    tensor = TensorType(f32, (None,), (None,), 4)
    memory = (tensor, MutType(tensor, (1,)))
    if any(each is not None and each.accepts(type) for each in constraints for type in memory):
        return EVERY_DTYPE
    kind = re.fullmatch(r"(?:add|sub|mul|div|rem|neg|abs|max|min|cmp|mma)([fi])", name)
    wanted: Rule = _any if kind is None else _float if kind[1] == "f" else _integer
    return tuple(filter(wanted, op.dtypes()))


def _updated(name: str, dtype: DTypeLike) -> bool:
    update = re.fullmatch(r"atomic_(add|and|or|xor|max|min|xchg)", name)
    if update is None:  # any update, or a comparison, which is of words
        sums = "cas" not in name and takes("addf", dtype)
        return sums or takes("xchg", dtype)
    return takes(update[1], dtype) or (update[1] == "add" and takes("addf", dtype))
