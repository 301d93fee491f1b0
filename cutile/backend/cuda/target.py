"""Architectures that this backend compiles for, and refusals of plans."""

import enum
import re
from dataclasses import dataclass

from cutile.dtypes import bf16, f16, f32, f64
from cutile.errors import UnsupportedTargetError

KNOWN = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
"""Architectures whose code is tested by compiling; others of compute capability 8.0 and up are accepted."""
FLOATS = (f16, bf16, f32, f64)
"""The dtypes with an instruction that multiplies and adds (`fma`)."""


@dataclass(frozen=True)
class Architecture:
    """One architecture and its limits.

    Attributes:
        major: the compute capability's first number.
        minor: its second number.
        suffix: "a" for code that uses this architecture's own instructions, "f" for its family's, else "".
        shared_bytes: the most shared memory that one block may have.
        registers: registers of one multiprocessor, of 32 bits each.
        max_threads: threads of one block.
    """

    major: int
    minor: int
    suffix: str
    shared_bytes: int
    registers: int = 65536
    max_threads: int = 1024

    @property
    def name(self) -> str:
        """The name that compilers take: `sm_90a`."""
        return f"sm_{self.major}{self.minor}{self.suffix}"

    @property
    def capability(self) -> tuple[int, ...] | tuple[int, int, str]:
        """The form that Numba takes: `(9, 0, "a")`."""
        return (self.major, self.minor, self.suffix) if self.suffix else (self.major, self.minor)


_COMPLETE = {8: (0, 6, 7, 8, 9), 9: (0,)}
"""All minor versions of major versions that get no more (CUDA C++ Programming Guide, "Compute Capabilities")."""

_SHARED_KILOBYTES = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}
"""The most shared memory of a thread block in KiB, by compute capability; 99 for all others (CUDA C++ Programming
Guide, "Technical Specifications per Compute Capability")."""
RESIDENT_LIMITS: dict[tuple[int, int], tuple[int, int]] = {
    (8, 0): (2048, 32),
    (8, 6): (1536, 16),
    (8, 7): (1536, 16),
    (8, 9): (1536, 24),
    (9, 0): (2048, 32),
    (10, 0): (2048, 32),
    (10, 3): (2048, 32),
    (11, 0): (1536, 24),
    (12, 0): (1536, 24),
    (12, 1): (1536, 24),
}
"""The most threads and thread blocks of a multiprocessor, by compute capability (CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability")."""


def architecture(name: str) -> Architecture:
    """The architecture of a name such as `sm_90a`.

    Raises:
        UnsupportedTargetError: no such architecture, or one before sm_80, which lacks bf16 and `mma.sync.m16n8k16`.

    Example:
        >>> architecture("sm_90a").capability
        (9, 0, 'a')
    """
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", name)
    if match is None:
        raise UnsupportedTargetError(
            f"{name!r} is no CUDA architecture; expected a name such as sm_80, sm_90a or sm_100a"
        )
    major, minor, suffix = int(match[1]), int(match[2]), match[3]
    if minor not in _COMPLETE.get(major, (minor,)):
        raise UnsupportedTargetError(f"there is no {name}; expected one such as {', '.join(KNOWN)}")
    if major < 8:
        raise UnsupportedTargetError(f"{name} is too old: kernels need sm_80 (Ampere) or later; use the cpu backend")
    kilobytes = _SHARED_KILOBYTES.get((major, minor), 99)
    return Architecture(major, minor, suffix, kilobytes * 1024)


def for_capability(major: int, minor: int) -> str:
    """The architecture to compile for on a device of this compute capability.

    Example:
        >>> for_capability(9, 0), for_capability(8, 6)
        ('sm_90a', 'sm_86')
    """
    # `wgmma` and `setmaxnreg`, among others, are only in code for one architecture, marked "a" (PTX ISA, ".target").
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


class Lack(enum.Enum):
    """Kinds of refusals: what a kernel, a target or options lack for a plan."""

    # Options: `asked_for` puts these words into the refusal's text.
    CLUSTER = "blocks to a cluster"
    OCCUPANCY = "blocks to a multiprocessor"
    PIECES = "pieces of a tile block"
    WARPS = "worker warps"
    # Targets, kernels and tiles.
    ARCHITECTURE = "an architecture with products of warpgroups"
    ALIGNED_ROWS = "rows of a tensor that begin at multiples of 16 bytes"
    ANY_ORDER = "tile blocks that may run in any order"
    BULK_LOADS = "loads for which TMA is not forbidden"
    COLUMNS = "a number of columns that an instruction has"
    CONTIGUOUS_AXIS = "an axis with a stride of 1"
    DTYPES = "operands of dtypes that an instruction has"
    K_MAJOR = "an operand that is contiguous along K"
    LOADS_IN_LOOP = "operands that are loaded in the loop"
    NO_ADDRESSES = "stores to partitions alone"
    NO_ASSERTIONS = "indices that need no assertion"
    NUMBERS = "indices that are computed from numbers"
    ONE_PRODUCT = "one product, and no further one"
    ONE_USE = "one use of each load"
    ONLY_SUMS = "a loop that does no more than add up products"
    READ_ONLY = "tensors that this launch does not write"
    REGISTERS = "registers for a tile's sums"
    ROWS = "rows that divide among warpgroups"
    SHARED_MEMORY = "shared memory for the stages"
    STEPS_OF_K = "a depth of whole steps"
    TF32 = "operands that tensor cores multiply, in place of f32"
    TWO_AXES = "products of tiles with two axes"
    ELSE = "anything else, for which there is no remedy"


class Refusal(str):
    """Why a kernel has no plan of one kind, as text.

    Attributes:
        kind: what the kernel lacks.
        detail: the reason alone, which the text has after a colon; the whole text where it has none.
    """

    __slots__ = ("detail", "kind")

    def __new__(cls, text: str, kind: Lack = Lack.ELSE, detail: str = "") -> "Refusal":
        """`text: detail`, or the text alone."""
        refusal = super().__new__(cls, f"{text}: {detail}" if detail else text)
        refusal.kind, refusal.detail = kind, detail or text
        return refusal

    @staticmethod
    def of(reason: str, kind: Lack = Lack.ELSE) -> "Refusal":
        """A reason as a refusal: itself, or plain text with the kind `kind`."""
        return reason if isinstance(reason, Refusal) else Refusal(reason, kind)


class Refused(Exception):
    """A requirement does not hold.

    Attributes:
        refusal: the reason.
    """

    def __init__(self, reason: str, kind: Lack = Lack.ELSE) -> None:
        self.refusal = Refusal.of(reason, kind)
        super().__init__(self.refusal)


def require(holds: bool, reason: str, kind: Lack = Lack.ELSE) -> None:
    """Refuse a plan unless a requirement holds.

    Args:
        holds: whether the requirement holds.
        reason: why there is no plan if it does not hold.
        kind: what is lacking then; ignored if `reason` is a `Refusal`, which has its own kind.

    Raises:
        Refused: the requirement does not hold.
    """
    if not holds:
        raise Refused(reason, kind)


def asked_for(kind: Lack, number: int | None, more: str = "", detail: str = "") -> Refusal:
    """The refusal of a number that an option asks for.

    Args:
        kind: the option.
        number: its number.
        more: the rest of the text, after "are asked for".
        detail: the reason (`Refusal.detail`).
    """
    return Refusal(f"{number} {kind.value} are asked for{more}", kind, detail)


def would_hold(sums: int, room: str, whose: str = "") -> Refusal:
    """The refusal of more accumulator registers than a thread has room for.

    Args:
        sums: accumulator registers that a thread would hold.
        room: the rest of the text, which says how many it has room for.
        whose: which threads these are, after "a thread".
    """
    return Refusal(f"a thread{whose} would hold {sums} sums{room}", Lack.REGISTERS)


def depends_on(what: str, *, asserts: bool) -> Refusal:
    """The refusal of an index or an assertion that needs more than numbers.

    Args:
        what: the words for the thing that the index or the assertion depends on.
        asserts: whether the kernel has assertions; without any, an index is to blame.
    """
    kind = Lack.NO_ASSERTIONS if asserts else Lack.NUMBERS
    return Refusal(f"an index of a load, or an assertion, depends on {what}", kind)


def undivided(rows: str, sharing: str) -> Refusal:
    """The refusal of a tile whose rows some warps cannot share."""
    return Refusal(f"{rows} do not divide among {sharing}", Lack.ROWS)
