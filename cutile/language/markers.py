"""Markers: the fixed choices of an operation, as enums.

Operations have defaults for them: `ct.exp2(x)` is the common case, `ct.exp2(x, ftz=True)` the other one. Where there
are just two choices, a bool means the same as the marker: `ftz=True` is `ftz=ct.ftz.ENABLED`.

Their names are in lower case, as kernels write them. A marker's value is its word in the IR.
"""

from __future__ import annotations

from cutile.errors import ArgumentError
from cutile.language.facts import Marker


class rounding(Marker):
    """Which neighbour a result between two floats is rounded to.

    Of `divi`: between two integers.
    """

    NEAREST_EVEN = "nearest_even"
    """The nearest; of two that are as near, the one whose last bit is 0."""
    POSITIVE_INF = "positive_inf"
    """The one above; the ceiling of a quotient."""
    NEGATIVE_INF = "negative_inf"
    """The one below; the floor of a quotient."""
    ZERO = "zero"
    """The one nearer to zero: truncation."""
    APPROX = "approx"
    """A fast result within a stated bound."""
    FULL = "full"
    """A fast result that is right over the full range of exponents, within a stated bound."""


class ftz(Marker):
    """Whether f32 results and operands below the smallest normal number become zero.

    Their sign is kept.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"


class nan(Marker):
    """Whether a maximum or minimum is NaN where one operand is.

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
    """Which comparison."""

    EQUAL = "eq"
    NOT_EQUAL = "ne"
    LESS_THAN = "lt"
    LESS_THAN_OR_EQUAL = "le"
    GREATER_THAN = "gt"
    GREATER_THAN_OR_EQUAL = "ge"


class cmp_ordering(Marker):
    """What a comparison of floats gives where an operand is NaN.

    ORDERED false, UNORDERED true.
    """

    ORDERED = "ordered"
    UNORDERED = "unordered"


class signedness(Marker):
    """How the bits of an integer are read, where its dtype does not say."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"


class reverse(Marker):
    """From which end a scan begins."""

    FORWARD = "forward"
    REVERSE = "reverse"


class padding(Marker):
    """What a load gives past the edges of a tensor."""

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
    """Not atomic; all others are. While one block writes an element so, no other one may access it."""
    RELAXED = "relaxed"
    ACQUIRE = "acquire"
    RELEASE = "release"
    ACQ_REL = "acq_rel"


class scope(Marker):
    """Which blocks and devices an ordered access is ordered among."""

    TILE_BLOCK = "tile_block"
    DEVICE = "device"
    SYSTEM = "system"


class atomic(Marker):
    """What an atomic update does with the element and its argument.

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

    TMA serves loads of partitions in kernels with products (sm_90a). There it may serve stores of a product's result,
    by `y.store` and by views. With DISABLED, threads load or store this tile. A plan that needs TMA for it is refused:
    `explain` says so.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"


class Latency(int):
    """Iterations of its loop that a load may be begun ahead: `ct.Latency(4)`.

    A hint, which changes no result.

    On a GPU the loads of a loop run ahead of it through stages of shared memory. A load has one stage more than its
    latency, or as many as fit; without a hint it has as many as fit, up to four. Operands that TMA loads share their
    stages, and take the larger latency. The CPU loads nothing ahead.

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
