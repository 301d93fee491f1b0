"""Markers: the fixed choices of an operation, as enums.

Their first use is rarely needed.

Each is the default of an argument, so `ct.exp2(x)` is the common case and `ct.exp2(x, ftz=True)` the other one. Where
there are just two choices a bool means the same as the marker: `ftz=True` is `ftz=ct.ftz.ENABLED`.

A marker's value is the word that stands in the IR. Nothing here computes.
"""

from __future__ import annotations

from cutile.errors import ArgumentError
from cutile.language.facts import Marker


class rounding(Marker):
    """The neighbour to which a result between two floats goes.

    In `divi`: between two integers.
    """

    NEAREST_EVEN = "nearest_even"
    """The nearest; of two equally near ones the one whose last bit is 0."""
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
    """Whether a maximum or minimum with NaN is NaN (ENABLED: it propagates).

    DISABLED: it is the other operand.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"


class overflow(Marker):
    """What the author promises of an integer operation.

    A promise that holds changes no result.
    """

    NONE = "none"
    """Nothing: results wrap."""
    NO_SIGNED_WRAP = "no_signed_wrap"
    """Read as signed, the exact result fits."""
    NO_UNSIGNED_WRAP = "no_unsigned_wrap"
    """Read as unsigned, the exact result fits."""
    NO_WRAP = "no_wrap"
    """Both."""


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
    """Anything: the kernel does not look."""
    ZERO = "zero"
    NEG_ZERO = "neg_zero"
    NAN = "nan"
    POS_INF = "pos_inf"
    NEG_INF = "neg_inf"


class ordering(Marker):
    """How an access to memory is ordered, in the memory model of C++ and PTX."""

    WEAK = "weak"
    """No other block accesses the element meanwhile. The only one that is not atomic."""
    RELAXED = "relaxed"
    ACQUIRE = "acquire"
    RELEASE = "release"
    ACQ_REL = "acq_rel"


class scope(Marker):
    """Among whom an ordered access is ordered."""

    TILE_BLOCK = "tile_block"
    DEVICE = "device"
    SYSTEM = "system"


class atomic(Marker):
    """What an atomic update does with the element and its argument."""

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
    """Whether an access may go through TMA, where there is one.

    A hint.

    Only loads of plain partitions that feed a product in a loop ever do (sm_90a), and the store of a block's own tile,
    `y.store`, which takes no hint; for other accesses it says nothing.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"


class Latency(int):
    """How many turns of its loop ahead a load may be begun: `ct.Latency(4)`.

    A hint, which changes no result.

    On a GPU the loads of a loop run ahead of it through stages in shared memory: of which a load has one more than its
    latency, and no more than fit; without a hint it has as many as fit, up to four. Operands that TMA loads
    share their stages, and take the larger latency. The CPU loads nothing ahead.

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
