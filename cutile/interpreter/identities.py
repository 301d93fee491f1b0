"""Whether the identity of a fold is one: it meets elements wherever a target likes, and must change none.

A target begins with it, pads with it, or never uses it, and so one that is none gives another result on each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.backend.reference.folding import apply
from cutile.backend.reference.interpret import Walker
from cutile.errors import IdentityError
from cutile.ops.reduce import Folding

Array = np.ndarray[Any, Any]

_TOLERANCE = 1e-2
"""Of the largest element: what functions that round may be off by. What is no identity is mostly off by more."""


def check_identity(op: Folding, walker: Walker) -> None:
    """Check a fold that is about to run on the elements that it has.

    Raises:
        IdentityError: with an element that the identity changes.
    """
    elements = [np.asarray(walker.values[tile]) for tile in op.tiles]
    pairs = zip(elements, op.identities, strict=True)
    identities = [np.full(each.shape, np.asarray(identity).astype(each.dtype)) for each, identity in pairs]
    for left, right in ((identities, elements), (elements, identities)):
        for number, (got, wanted) in enumerate(zip(apply(op.body, [*left, *right]), elements, strict=True)):
            changed = ~_alike(got, wanted)
            if changed.any():
                one = tuple(axis[0] for axis in np.nonzero(changed))
                _refuse(op, number, identities_first=left is identities, element=wanted[one], found=got[one])


def _alike(got: Array, wanted: Array) -> Array:
    if wanted.dtype.kind in "biu":
        return np.asarray(got == wanted)
    x, y = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    largest = np.max(np.abs(y), where=np.isfinite(y), initial=0)
    return np.isclose(x, y, rtol=0, atol=_TOLERANCE * largest, equal_nan=True)


def _refuse(op: Folding, number: int, *, identities_first: bool, element: Any, found: Any) -> None:
    identity = op.identities[0] if len(op.identities) == 1 else op.identities
    order = "(identity, element)" if identities_first else "(element, identity)"
    which = "" if len(op.identities) == 1 else f" of tile {number}"
    raise IdentityError(
        f"{op.name}: {identity!r} is no identity of the function: of the element {element}{which}, "
        f"function{order} makes {found}",
        op.location,
        "Give the number that changes nothing: 0 for a sum, 1 for a product, -f32.inf for a maximum.",
    )
