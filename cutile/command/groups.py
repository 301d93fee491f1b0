"""The groups of the page of the kernel language, in reading order.

An entry is in the group that names it. Else it is in the group whose pattern fits its name, or else in the group of its
family. The last group has names of cuTile Rust ("upstream"). Most of these operations have another name here as well.
"""

from __future__ import annotations

import re

GROUPS: dict[str, tuple[str, ...]] = {
    "Which tile this is": ("Mut.index",),
    "Loads and stores of tiles": (
        "Mut.load", "Mut.store", "Mut.inside", "load_tile", "load_tile_like", "Tensor.load_tile", "Tensor.partition",
        "Tensor.partition_permuted", "Tensor.slice", "Partition.load", "Partition.inside", "Partition.load_pipelined",
        "Mut.partition_mut", "PartitionMut.store", "num_tiles", "get_tensor_shape", "make_strided_view",
        "SharedMut.partition", "SharedMut.partition_permuted",
    ),
    "Elements by index": ("gather", "scatter"),
    "New tiles": ("constant", "iota"),
    "Random numbers": ("philox", "rand", "randint", "randn"),
    "Arithmetic and bits": (),
    "Functions": (),
    "Comparison, tests and choice": (),
    "Element types": (),
    "Shape": (),
    "Moving elements": ("cat", "extract", "insert", "flip", "roll", "repeat", "take_along_axis"),
    "Along axes": ("argmax", "argmin"),
    "Running results": ("cumsum", "cumprod", "cummax", "scan"),
    "Sorting": (),
    "Matrix products": (),
    "Atomic updates": (),
    "Streams of tiles": (),
    "Printing and assertions": ("cuda_tile_assert", "cuda_tile_print"),
    "Properties of tiles and tensors": (),
    "At compile time": (),
    "Memory by address": (),
    "Upstream's own names": (),
}  # fmt: skip
"""Titles, each with the entries that it names, whatever their family."""

_BY_FAMILY = {
    "arith": "Arithmetic and bits",
    "atomic": "Atomic updates",
    "bound": "At compile time",
    "cast": "Element types",
    "compare": "Comparison, tests and choice",
    "constant": "New tiles",
    "create": "New tiles",
    "debug": "Printing and assertions",
    "grid": "Which tile this is",
    "language": "Properties of tiles and tensors",
    "math": "Functions",
    "matmul": "Matrix products",
    "memory": "Loads and stores of tiles",
    "pointer": "Memory by address",
    "reduce": "Along axes",
    "shape": "Shape",
    "sort": "Sorting",
    "view": "Loads and stores of tiles",
}
"""Groups of the entries that no group names and no pattern fits, by their family (`Entry.family`).

Some families have no such entry today. `rounding` never has one: an entry has the family of its first operation, which
is never one of `rounding`.
"""
_UPSTREAM = (
    r"(abs|add|div|max|min|mul|neg|rem|sub|cmp)[fi]|(and|not|or|shl|shr|xor)i|mulhii|mma[fi]|true_div|"
    r"(exti|trunci|itof|ftoi|ftof|convert_scalar)|(eq|ne|lt|le|gt|ge)_tile|\w+_tko|scan_sum|broadcast_scalar|"
    r"scalar_to_tile|tile_to_scalar|permute_array|get_shape_dim|get_index_space_shape|(load|store)_tile(_mut)?|"
    r"\w+_(ptr|pointer|token)|(ptr|pointer)_to_\w+|\w+_token_\w+|addptr_tile|make_(partition|tensor)_view(_mut)?|"
    r"load_tensor|addptr|join_tokens|make_gather_scatter_view"
)
_BY_PATTERN = (
    (
        r"MappedPartitionMut\.\w+|PartitionIndex\.\w+|Partition\.load_index|PartitionMut\.store_index",
        "Streams of tiles",
    ),
    (r"Ptr\.\w+", "Memory by address"),
    (r"static_\w+", "At compile time"),
    (_UPSTREAM, "Upstream's own names"),
)
"""Patterns of whole names, with their groups. No name fits two of them."""


def group_of(name: str, family: str) -> str:
    """The title of the group that an entry is in.

    Args:
        name: the entry's name, as `Mut.load`.
        family: the entry's family (`Entry.family`).

    Raises:
        KeyError: no group names the entry, no pattern fits it, and its family is not in `_BY_FAMILY`.
    """
    for title, names in GROUPS.items():
        if name in names:
            return title
    for pattern, title in _BY_PATTERN:
        if re.fullmatch(pattern, name):
            return title
    return _BY_FAMILY[family]
