"""The meaning of collectives, in NumPy: a rank's result from all operands.

The engines of the CPU and of simulated devices compute by these functions; NCCL has its own. The operands are added up
in the order of their ranks, so that every rank has the same bits, whichever rank came first. Floats of 16 and 8 bits
are added up in f32 and rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ("KINDS", "REDUCTIONS", "is_read", "outcome", "why_unsupported")

Array = npt.NDArray[Any]

REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
}
"""Reductions by name. `min` and `max` of a NaN are NaN, as in NumPy. `avg` is a sum, which `_reduced` then divides."""


def why_unsupported(dtype: np.dtype[Any], op: str) -> str:
    """Why elements of this dtype cannot be reduced by `op`; empty if they can."""
    if dtype.kind == "b" and op not in ("min", "max"):
        return f"bools have no {op}; max is `any` and min is `all`"
    if op == "avg" and dtype.kind in "iu":
        return "integers have no avg; use sum, and divide as the program needs it"
    return ""


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which elements of a dtype are added up.

    Bf16 and the 8-bit floats have kind V, since they are not NumPy's own.
    """
    return np.dtype(np.float32) if dtype.kind in "fV" and dtype.itemsize <= 2 else dtype


def _reduced(op: str, parts: list[Array]) -> Array:
    dtype = parts[0].dtype
    wide = _wide(dtype)
    total: Array = functools.reduce(REDUCTIONS[op], (part.astype(wide, copy=False) for part in parts))
    if op == "avg":
        total = total / wide.type(len(parts))
    return total.astype(dtype, copy=False)


def _all_reduce(parts: list[Array], rank: int, op: str, root: int) -> Array | None:
    return _reduced(op, parts)


def _reduce(parts: list[Array], rank: int, op: str, root: int) -> Array | None:
    return _reduced(op, parts) if rank == root else None


def _broadcast(parts: list[Array], rank: int, op: str, root: int) -> Array | None:
    return parts[root] if rank != root else None


def _all_gather(parts: list[Array], rank: int, op: str, root: int) -> Array | None:
    return np.concatenate(parts)


def _reduce_scatter(parts: list[Array], rank: int, op: str, root: int) -> Array | None:
    return _reduced(op, [part.reshape(len(parts), -1)[rank] for part in parts])


def _all_to_all(parts: list[Array], rank: int, op: str, root: int) -> Array | None:
    return np.concatenate([part.reshape(len(parts), -1)[rank] for part in parts])


def _barrier(parts: list[Array], rank: int, op: str, root: int) -> Array | None:
    return None


KINDS: dict[str, Callable[[list[Array], int, str, int], Array | None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
}
"""The collectives in which all ranks take part. `send` and `recv` meet in pairs."""


def outcome(kind: str, parts: Mapping[int, Array], rank: int, op: str, root: int) -> Array | None:
    """A rank's result; None where its memory stays as it is.

    Args:
        kind: a name of `KINDS`, or `message` for a `send` and its `recv`.
        parts: the elements of each rank's operand, as an array of one axis.
        rank: the rank of the result.
        op: a name of `REDUCTIONS`, if the kind reduces.
        root: the rank that has the original, gets the sum, or sends.
    """
    if kind == "message":
        return parts[root] if rank != root else None
    with np.errstate(all="ignore"):  # what overflows is inf or wraps round, as on a device
        return KINDS[kind]([parts[number] for number in sorted(parts)], rank, op, root)


def is_read(kind: str, rank: int, root: int) -> bool:
    """Whether other ranks read this rank's operand. If not, nobody gets it."""
    if kind in ("broadcast", "message"):
        return rank == root
    return kind != "barrier"
