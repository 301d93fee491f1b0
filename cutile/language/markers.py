"""Markers: the fixed choices of an operation, as enums.

Operations have defaults for them: `ct.exp2(x)` is the common case, `ct.exp2(x, ftz=True)` the other one. Where the
choice is between ENABLED and DISABLED, a bool does as well: `ftz=True` is `ftz=ct.ftz.ENABLED`.

Their names are in lower case, as kernels write them. A marker's value is its word in the IR.
"""

from __future__ import annotations

from cutile.errors import ArgumentError
from cutile.language.facts import Marker


class rounding(Marker):
    """Which neighbour a result between two floats is rounded to.

    For `divi` the neighbours are integers.
    """

    NEAREST_EVEN = "nearest_even"
    """The nearest; of two equally near ones, the one whose last bit is 0."""
    POSITIVE_INF = "positive_inf"
    """The one above; the ceiling of a quotient."""
    NEGATIVE_INF = "negative_inf"
    """The one below; the floor of a quotient."""
    ZERO = "zero"
    """The one nearer to zero: truncation."""
    APPROX = "approx"
    """A fast result within a stated bound."""
    FULL = "full"
    """A fast result within a stated bound, which holds over the full range of exponents."""


class ftz(Marker):
    """Flush to zero: whether subnormal f32 operands and results become zero.

    Their sign is kept.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"


class nan(Marker):
    """Whether a maximum or minimum is NaN where one operand is NaN.

    ENABLED: NaN propagates. DISABLED: the result is the other operand.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"


class overflow(Marker):
    """A promise about the exact result of an integer operation.

    It is neither checked nor used: results wrap in any case.
    """

    NONE = "none"
    """No promise."""
    NO_SIGNED_WRAP = "no_signed_wrap"
    """Read as signed, the exact result fits."""
    NO_UNSIGNED_WRAP = "no_unsigned_wrap"
    """Read as unsigned, the exact result fits."""
    NO_WRAP = "no_wrap"
    """Read either way, it fits."""


class predicate(Marker):
    """The comparison that `cmpi` and `cmpf` make."""

    EQUAL = "eq"
    NOT_EQUAL = "ne"
    LESS_THAN = "lt"
    LESS_THAN_OR_EQUAL = "le"
    GREATER_THAN = "gt"
    GREATER_THAN_OR_EQUAL = "ge"


class cmp_ordering(Marker):
    """The result of a comparison of floats where an operand is NaN.

    ORDERED gives false, UNORDERED true.
    """

    ORDERED = "ordered"
    UNORDERED = "unordered"


class signedness(Marker):
    """How `mmai` reads the bits of a factor, whatever the sign of its dtype."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"


class reverse(Marker):
    """The end from which a scan begins: the first element, or the last."""

    FORWARD = "forward"
    REVERSE = "reverse"


class padding(Marker):
    """The elements that a load gives past the edges of a tensor."""

    NONE = "none"
    """Unspecified elements, which the kernel must not use."""
    ZERO = "zero"
    NEG_ZERO = "neg_zero"
    NAN = "nan"
    POS_INF = "pos_inf"
    NEG_INF = "neg_inf"


class ordering(Marker):
    """How an access to memory is ordered, in the memory model of C++ and PTX."""

    WEAK = "weak"
    """Not atomic; all others are. While one block writes an element with it, no other block may access that element."""
    RELAXED = "relaxed"
    """Atomic, but orders no other access."""
    ACQUIRE = "acquire"
    """Also: if it reads an element that a RELEASE wrote, this block's later accesses see all that came before that."""
    RELEASE = "release"
    """Also: an ACQUIRE that reads the element makes all earlier accesses of this block visible to the reader."""
    ACQ_REL = "acq_rel"
    """ACQUIRE and RELEASE at once, for updates."""


class scope(Marker):
    """The blocks, and devices, that an ordered access is ordered with."""

    TILE_BLOCK = "tile_block"
    """This tile block alone."""
    DEVICE = "device"
    """All tile blocks on this device, of all kernels."""
    SYSTEM = "system"
    """Those of all devices, and the host."""


class atomic(Marker):
    """How an atomic update combines the element and its argument.

    MAX and MIN read integers as signed, UMAX and UMIN as unsigned. ADD is for integers, ADDF for floats.
    """

    ADD = "add"
    ADDF = "addf"
    AND = "and"
    OR = "or"
    XOR = "xor"
    MAX = "max"
    MIN = "min"
    UMAX = "umax"
    UMIN = "umin"
    XCHG = "xchg"


class tma(Marker):
    """Whether a load or a store may go through TMA; a hint.

    On sm_90a, TMA serves loads of partitions in kernels with products. In such kernels it may also serve stores of a
    product's result, by `y.store` and by views. With DISABLED, threads load or store this tile. The compiler then
    refuses plans that need TMA for the tile, and `explain` says so.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"


class Latency(int):
    """Iterations of its loop by which a load may run ahead: `ct.Latency(4)`.

    A hint, which changes no result.

    On a GPU the loads of a loop run ahead of it through stages of shared memory. A load has one stage more than its
    latency, or as many as fit if these are fewer. Without a hint it has as many as fit, up to four. The operands that
    TMA loads share their stages, and take the larger latency. The CPU loads nothing ahead.

    Raises:
        ValueError: below 1.
    """

    def __new__(cls, turns: int) -> Latency:
        if turns < 1:
            raise ArgumentError(f"a latency is a number of turns, at least 1, got {turns}")
        return super().__new__(cls, turns)

    def __repr__(self) -> str:
        return f"ct.Latency({int(self)})"


__all__ = (
    "Latency",
    "atomic",
    "cmp_ordering",
    "ftz",
    "nan",
    "ordering",
    "overflow",
    "padding",
    "predicate",
    "reverse",
    "rounding",
    "scope",
    "signedness",
    "tma",
)
