"""Architectures that this backend compiles for, and why plans are refused."""

import enum
import re
from dataclasses import dataclass

from cutile.dtypes import bf16, f16, f32, f64
from cutile.errors import UnsupportedTargetError

KNOWN = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
"""Architectures whose code is tested by compiling; others of compute capability 8.0 and up are accepted."""
FLOATS = (f16, bf16, f32, f64)
"""The dtypes in which one instruction multiplies and adds."""


@dataclass(frozen=True)
class Architecture:
    """One architecture and its limits.

    Attributes:
        major: the compute capability's first number.
        minor: its second.
        suffix: "a" for code that uses this architecture's own instructions, "f" for its family's, else "".
        shared_bytes: the most shared memory that one block may have.
        registers: registers of one multiprocessor.
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
        """As compilers spell it: `sm_90a`."""
        return f"sm_{self.major}{self.minor}{self.suffix}"

    @property
    def capability(self) -> tuple[int, ...] | tuple[int, int, str]:
        """As Numba takes it: `(9, 0, "a")`."""
        return (self.major, self.minor, self.suffix) if self.suffix else (self.major, self.minor)


_COMPLETE = {8: (0, 6, 7, 8, 9), 9: (0,)}
"""Minor versions of the major ones that get no more (CUDA C++ Programming Guide, "Compute Capabilities")."""

_SHARED_KILOBYTES = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}


def architecture(name: str) -> Architecture:
    """The architecture named `sm_90a` and the like.

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
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


class Lack(enum.Enum):
    """Kinds of refusals: what a kernel, a target or options lack for a plan."""

    CLUSTER = "blocks to a cluster"
    OCCUPANCY = "blocks to a multiprocessor"
    ONE_PRODUCT = "one product, and no further one"
    PIECES = "pieces of a tile block"
    WARPS = "worker warps"
    ELSE = "anything else"


class Refusal(str):
    """Why a kernel has no plan of one kind, as text.

    Attributes:
        kind: what it lacks.
        detail: why it lacks what is asked for, where the text has a reason of its own; else the whole text.
    """

    __slots__ = ("detail", "kind")

    def __new__(cls, text: str, kind: Lack = Lack.ELSE, detail: str = "") -> "Refusal":
        """`text: detail`, or the text alone."""
        refusal = super().__new__(cls, f"{text}: {detail}" if detail else text)
        refusal.kind, refusal.detail = kind, detail or text
        return refusal

    @staticmethod
    def of(reason: str) -> "Refusal":
        """A reason with its kind; plain text is of the kind `ELSE`."""
        return reason if isinstance(reason, Refusal) else Refusal(reason)


def asked_for(kind: Lack, number: int | None, more: str = "", detail: str = "") -> Refusal:
    """The refusal of an option's number."""
    return Refusal(f"{number} {kind.value} are asked for{more}", kind, detail)
