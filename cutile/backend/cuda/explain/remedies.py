"""Refusals of plans, and what a kernel's author can do about each."""

from __future__ import annotations

import re

_PLANS = {
    "specialised warps": "warp specialisation for a single product",
    "pipelines": "warp specialisation",
}

_REMEDIES = (
    (r"has no warp ?group products", "wgmma and TMA need sm_90a"),
    (r"is not loaded in the loop", "Load operands in the loop, and compute on the product instead"),
    (r"is loaded by threads", "TMA loads rows at multiples of 16 bytes: pad the tensor's"),
    (r"multiples of 16 bytes", "Pad the tensor's rows to a multiple of 16 bytes"),
    (r"known to be contiguous", "Pass a tensor with a stride of 1"),
    (r"no whole number of 64|do not divide among", "Use a tile with a multiple of 64 rows"),
    (r"a multiple of (8|16) up to 256", "Use as many columns"),
    (r"a thread would hold|has registers for", "Use a smaller tile"),
    (r"shared memory|take \d+ bytes", "Use smaller tiles, or a smaller step along K"),
    (r"whole number of steps", "Use a step along K that is a multiple of 32 bytes"),
    (r"of f32 by f32", "Convert the operands to ct.tf32, f16 or bf16"),
    (r"keep to a warp|no warpgroup product", "Use operands of f16, bf16, tf32 or 8 bits"),
    (r"keep their order", "Leave out atomics, prints and ordered accesses"),
    (r"by address", "Use partitions in place of pointers"),
    (r"assert", "Make the index provable, or state it in preconditions"),
    (r"worker warps are asked for", "Leave out num_worker_warps"),
    (r"to a multiprocessor are asked for", "Leave out occupancy"),
    (r"to a cluster are asked for", "Leave out num_cta_in_cga"),
    (r"pieces of a tile block are asked for", "Leave out num_pieces"),
    (r"tma\.DISABLED", "Leave out the hint"),
    (r"this launch writes", "Read from another tensor than the one that is written"),
    (r"does more than multiply|carries more than the sums|used within the loop", "Move that behind the loop"),
    (r"depends on", "Compute indices from numbers alone"),
    (r"lies across K", "Store that operand with K contiguous"),
    (r"a batch of products", "Reshape tiles of one batch to two axes"),
    (r"is used twice", "Load the operand once for each use"),
)


def in_words(plan: str) -> str:
    """A plan's name in the words of its field."""
    return _PLANS.get(plan, plan)


def remedy(reason: str) -> str:
    """What helps against a refusal.

    Empty where the reason itself says so, or nothing does.

    Example:
        >>> remedy("a tile of 16 rows is no whole number of 64")
        'Use a tile with a multiple of 64 rows'
    """
    return next((text for pattern, text in _REMEDIES if re.search(pattern, reason)), "")
