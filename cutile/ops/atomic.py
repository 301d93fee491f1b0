"""Atomic updates of memory by address.

Each lane reads, changes and writes an element, and no other access comes between.

`reference` is the arithmetic of one update: it makes the new element of the old one and the operands. Lanes with the
same address all take effect, in any order. See `pointer.py` for masks, orders and scopes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from cutile.dtypes import DTYPES, DTypeLike
from cutile.errors import KernelTypeError
from cutile.ir import ANY_TILE, BOOL_TILE, SCALAR_INT, Effect, Op, Type, Value, attribute, operand, operands
from cutile.ops.pointer import ADDRESSES, check_lanes, check_words

ORDERS = ("relaxed", "acquire", "release", "acq_rel")

INT_KINDS = ("add", "and", "or", "xor", "max", "min", "umax", "umin")


def _signed(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda old, value: _as(f"i{old.dtype.itemsize}", function, old, value)


def _unsigned(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda old, value: _as(f"u{old.dtype.itemsize}", function, old, value)


def _as(kind: str, function: Callable[..., Any], old: Any, value: Any) -> Any:
    """Apply the function to the bits, read as integers of NumPy's type `kind`."""
    result = np.asarray(function(np.asarray(old).view(kind), np.asarray(value).view(kind)))
    return result.view(old.dtype)


_MEANING: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "addf": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": _signed(np.maximum),
    "min": _signed(np.minimum),
    "umax": _unsigned(np.maximum),
    "umin": _unsigned(np.minimum),
    "xchg": lambda old, value: value,
}
"""By the kind of update, the function of the old element and the value that makes the new element."""


def takes(kind: str, dtype: DTypeLike) -> bool:
    """Whether an update of this kind is atomic on this dtype."""
    if kind == "addf":
        return dtype.is_float
    if kind in INT_KINDS:
        return dtype.is_integer and dtype.bits in (32, 64)
    return kind == "xchg" and dtype.bits in (32, 64)


def _instead_of(kind: str, dtype: DTypeLike) -> str:
    """The remedy where there is no update of a kind for a dtype."""
    if kind in ("max", "min") and dtype.is_float and dtype.bits == 32:
        return (
            f"Update i32 words of the same order: bits = ct.bitcast(x, ct.i32), then ct.atomic_{kind} of "
            "ct.select(bits < 0, bits ^ 0x7FFFFFFF, bits), which also takes words back to their bits. Or reduce within "
            "a tile, by ct.reduce_max and its kin, and store one result for each tile block."
        )
    return (
        "add, and, or, xor, max, min, umax and umin take i32, i64, u32 and u64; addf takes floats; xchg takes anything "
        "of 32 or 64 bits. Convert to such a dtype."
    )


class AtomicRmw(
    Op,
    name="atomic_rmw",
    spelled=(
        "atomic_rmw_tko",
        "atomic_red_view_tko",
        "atomic_add",
        "atomic_sub",
        "atomic_and",
        "atomic_or",
        "atomic_xor",
        "atomic_max",
        "atomic_min",
        "atomic_xchg",
    ),
    effect=Effect.OUTSIDE,
):
    """Update the elements at `pointers` by `value` where `mask` holds.

    The result is the element before the update, and 0 where the mask is false.

    `kind` is add, and, or, xor, max, min (signed), umax, umin (unsigned) on integers of 32 and 64 bits, addf on floats,
    xchg on anything of 32 or 64 bits. On a GPU, `addf` of f32 flushes denormal sums to zero.

    If the elements are a whole tile of a tensor, `index` is its tile index; else `index` is empty. The pointers and the
    mask name the elements in either case.

    Examples:
        >>> run(lambda x: ct.atomic_add(result, 0 * ct.iota((2,)), x), [1.0, 2.0])
        [0.0, 1.0]
    """

    pointers: Value = operand(ADDRESSES)
    value: Value = operand(ANY_TILE)
    mask: Value = operand(BOOL_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    kind: str = attribute()
    order: str = attribute("relaxed")
    scope: str = attribute("device")
    ordered: bool = attribute(False)

    @classmethod
    def dtypes(cls) -> tuple[DTypeLike, ...]:
        """The dtypes of elements that some kind of update takes."""
        return tuple(dtype for dtype in DTYPES if any(takes(kind, dtype) for kind in _MEANING))

    def infer(self) -> tuple[Type, ...]:
        check_lanes(self, self.pointers, value=self.value, mask=self.mask)
        check_words(self, self.order, ORDERS, self.scope)
        dtype = self.value.tile.dtype
        if not takes(self.kind, dtype):
            raise KernelTypeError(f"atomic {self.kind} of {dtype}: there is none", remedy=_instead_of(self.kind, dtype))
        return (self.value.type,)

    @property
    def lanes(self) -> tuple[Value, ...]:
        """Pointers, values and mask: the operands that have one lane for each element."""
        return self.operands[:3]

    def reference(self, old: Any, value: Any) -> Any:
        return _MEANING[self.kind](old, value)


class AtomicCas(Op, name="atomic_cas", spelled=("atomic_cas_tko", "atomic_cas"), effect=Effect.OUTSIDE):
    """Write `value` where the element at `pointers` has the bits of `expected`.

    The result is the element before the update, and 0 where the mask is false.

    Examples:
        >>> run(lambda x: ct.atomic_cas(result, 0 * ct.iota((2,)), 0.0, x), [1.0, 2.0])
        [0.0, 1.0]
    """

    pointers: Value = operand(ADDRESSES)
    expected: Value = operand(ANY_TILE)
    value: Value = operand(ANY_TILE)
    mask: Value = operand(BOOL_TILE)
    order: str = attribute("relaxed")
    scope: str = attribute("device")
    ordered: bool = attribute(False)

    @classmethod
    def dtypes(cls) -> tuple[DTypeLike, ...]:
        """The dtypes of elements."""
        return tuple(dtype for dtype in DTYPES if dtype.bits in (32, 64))

    def infer(self) -> tuple[Type, ...]:
        check_lanes(self, self.pointers, expected=self.expected, value=self.value, mask=self.mask)
        check_words(self, self.order, ORDERS, self.scope)
        if self.expected.type != self.value.type:
            raise KernelTypeError(f"atomic_cas: expected {self.value.type} to compare with, got {self.expected.type}")
        if self.value.tile.dtype.bits not in (32, 64):
            raise KernelTypeError(f"atomic_cas of {self.value.tile.dtype}: it takes elements of 32 or 64 bits")
        return (self.value.type,)

    def reference(self, old: Any, expected: Any, value: Any) -> Any:
        bits = f"u{old.dtype.itemsize}"
        same: Any = np.asarray(old).view(bits) == np.asarray(expected).view(bits)
        return cast("Any", np.where(same, value, old))
