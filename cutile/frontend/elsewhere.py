"""What to write in place of a name that another library has: NumPy, torch, or another language of kernels on tiles.

A list of names that are no names of ours, for the remedies of messages, and nothing else: a name in it compiles no more
than any other unknown name does.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from typing import Any

from cutile import language

_SUM, _MAX, _MIN = "ct.reduce_sum(tile, axis)", "ct.reduce_max(tile, axis)", "ct.reduce_min(tile, axis)"
_SHAPED = "ct.constant(value, shape, dtype)"

FUNCTIONS: dict[str, str] = {
    "abs": "abs(tile)",
    "amax": _MAX,
    "amin": _MIN,
    "arange": "ct.iota(shape, dtype)",
    "asarray": _SHAPED,
    "bid": "ct.get_tile_block_id()[axis]",
    "cast": "ct.convert_tile(tile, dtype)",
    "cdiv": "ct.ceil_div(a, b)",
    "concatenate": "ct.cat(x, y, axis)",
    "cumsum": "ct.scan_sum(tile, axis)",
    "dot": "ct.mma(a, b, acc)",
    "empty": _SHAPED,
    "expand_dims": "tile.reshape(shape)",
    "full": _SHAPED,
    "matmul": "ct.mma(a, b, acc)",
    "max": _MAX,
    "maximum": "ct.max_tile(x, y)",
    "min": _MIN,
    "minimum": "ct.min_tile(x, y)",
    "num_blocks": "ct.get_num_tile_blocks()[axis]",
    "num_programs": "ct.get_num_tile_blocks()[axis]",
    "ones": "ct.constant(1, shape, dtype)",
    "power": "ct.pow(x, y)",
    "prod": "ct.reduce_prod(tile, axis)",
    "program_id": "ct.get_tile_block_id()[axis]",
    "sum": _SUM,
    "where": "ct.select(condition, a, b)",
    "zeros": "ct.constant(0, shape, dtype)",
}
"""By the name of a function, as of a module."""

METHODS: dict[str, str] = {
    "T": "tile.transpose()",
    "cumsum": "ct.scan_sum(tile, axis)",
    "dot": "ct.mma(a, b, acc)",
    "max": _MAX,
    "min": _MIN,
    "permute": "ct.permute(tile, axes)",
    "prod": "ct.reduce_prod(tile, axis)",
    "size": "tile.shape, whose extents are constants",
    "sum": _SUM,
    "to": "tile.astype(dtype)",
    "type": "tile.astype(dtype)",
    "view": "tile.reshape(shape), or ct.bitcast(tile, dtype)",
}
"""By the name of a method or attribute of a tile."""


def in_module(owner: types.ModuleType, name: str) -> str:
    """The remedy for a name that a module does not have."""
    public: Iterable[str] = getattr(owner, "__all__", None) or dir(owner)
    if owner.__name__ == "cutile" and name in FUNCTIONS:
        return f"Write {FUNCTIONS[name]}."
    near = difflib.get_close_matches(name, list(public), n=1)
    return f"Did you mean {near[0]!r}?" if near else f"dir({owner.__name__}) lists what it has."


def of_tile(name: str, known: Iterable[str]) -> str:
    """The remedy for a method or attribute that a tile does not have."""
    if name in METHODS:
        return f"Write {METHODS[name]}."
    if hasattr(getattr(language, name, None), "__cutile__"):
        return f"It is a function: ct.{name}(tile, ...)."
    return among(name, known)


def among(name: str, known: Iterable[str]) -> str:
    """The remedy for a name that is none of these: the nearest of them first, if one is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return (f"Did you mean {near[0]!r}? " if near else "") + f"It has {', '.join(names)}."


def for_function(function: Any) -> str | None:
    """The remedy for a call of another library's function that has a counterpart: `np.exp` is `ct.exp`."""
    name = getattr(function, "__name__", "")
    if name in FUNCTIONS:
        return f"Write {FUNCTIONS[name]}."
    if hasattr(getattr(language, name, None), "__cutile__"):
        return f"Write ct.{name}, the language's own."
    return None
