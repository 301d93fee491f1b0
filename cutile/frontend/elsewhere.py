"""Remedies for names of other libraries: NumPy, torch, other languages of tiles.

A kernel that uses a name of these tables is refused. The message says what to write in its place.
"""

from __future__ import annotations

import enum
import functools
import random
import re
import types
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import numpy as np

from cutile import language
from cutile.dtypes import EVERY_DTYPE, DTypeMeta, as_dtype
from cutile.errors import closest

_SUM, _MAX, _MIN = "ct.reduce_sum(tile, axis)", "ct.reduce_max(tile, axis)", "ct.reduce_min(tile, axis)"
_SHAPED = "ct.constant(value, shape, dtype)"

_EXPECTED = "x.load_tile(shape, index), or ct.gather(x, index, mask=mask) for elements one by one"
_WRITTEN = "y.store(tile), or ct.scatter(y, index, value, mask=mask) for elements one by one"
_TILES = "x.partition(shape), whose tiles are loaded by their indices"
_TOP = "ct.top_k(tile, k, axis)"
_STACKED = "ct.cat(x, y, axis) of tiles reshaped to one more axis"
_DIAGONAL = "ct.select(ct.iota(8)[:, None] {} ct.iota(8)[None, :], {}, 0.0)"
_ORDERED = "nothing: a tile block's accesses are in program order"
_BELOW = "ct.reduce_sum((tile < value).astype(ct.i32), axis)"
_CHOSEN = "ct.scatter at ct.cumsum(mask.astype(ct.i32), 0) - 1, as docs/recipes/scans.md does"
_COMPLEX = "two tiles, of the real and of the imaginary parts, as docs/recipes/transforms.md does"
_FILTERED = "a loop over the filter, which adds ct.gather(x, index) times an element, as docs/recipes/grids.md does"
_NORM = "ct.mean, ct.var and ct.rsqrt, as docs/recipes/norms.md does"
_SHUFFLED = "ct.reduce_sum(tile, axis), ct.roll(tile, shift, axis) and their kin: elements have no threads"
_PRINT = "print(...), also with f-strings"
_THREAD = "ct.get_tile_block_id(): a kernel is written for tile blocks, the compiler spreads each over threads"

FUNCTIONS: dict[str, str] = {
    "abs": "abs(tile)",
    "add": "x + y",
    "advance": _TILES,
    "all": "tile.all(axis)",
    "allclose": "(abs(x - y) <= 1e-6).all(axis)",
    "amax": _MAX,
    "amin": _MIN,
    "any": "tile.any(axis)",
    "arange": "ct.iota(shape, dtype, start, step)",
    "argpartition": _TOP,
    "argwhere": _CHOSEN,
    "array": _SHAPED,
    "asarray": _SHAPED,
    "associative_scan": "ct.scan(tile, axis, ct.reverse.FORWARD, value, lambda a, b: a + b)",
    "assume": "ct.assume_bounds(index, low, high), or ct.assume_div_by(index, divisor)",
    "astype": "ct.convert_tile(tile, dtype)",
    "atomic_dec": "ct.atomic_sub(y, index, 1)",
    "atomic_exch": "ct.atomic_xchg(y, index, value)",
    "atomic_inc": "ct.atomic_add(y, index, 1)",
    "average": "ct.mean(tile, axis)",
    "ballot": "tile.any(axis), or the number of them, ct.reduce_sum(tile.astype(ct.i32), axis)",
    "barrier": _ORDERED,
    "bid": "ct.get_tile_block_id()[axis]",
    "bincount": "ct.atomic_add(counts, values, 1), as docs/reaching_memory.md does",
    "bitwise_and": "a & b",
    "bitwise_count": "ct.popcount(abs(a))",
    "bitwise_invert": "~a",
    "bitwise_left_shift": "a << b",
    "bitwise_not": "~a",
    "bitwise_or": "a | b",
    "bitwise_right_shift": "a >> b",
    "bitwise_xor": "a ^ b",
    "block_idx": "ct.get_tile_block_id()",
    "blockDim": "the extents of a tile, as y.shape",
    "blockIdx": "ct.get_tile_block_id()",
    "bmm": "ct.matmul(a, b)",
    "broadcast_to": "ct.broadcast(tile, shape)",
    "cast": "ct.convert_tile(tile, dtype)",
    "cdiv": "ct.ceil_div(a, b)",
    "clip": "ct.clamp(tile, low, high)",
    "clz": "1054 - (ct.bitcast(x.astype(ct.f64), ct.i64) >> 52), which takes integers of 32 bits above 0",
    "complex128": _COMPLEX,
    "complex64": _COMPLEX,
    "compress": _CHOSEN,
    "concat": "ct.cat((x, y), axis)",
    "concatenate": "ct.cat((x, y), axis)",
    "convolve": _FILTERED,
    "correlate": _FILTERED,
    "count_nonzero": "ct.reduce_sum((tile != 0.0).astype(ct.i32), axis)",
    "cross_entropy": "the logarithm of the sum minus the class's own, as docs/recipes/sparse.md does",
    "ctz": "ct.popcount((a & -a) - 1)",
    "cummin": "-ct.cummax(-tile, axis)",
    "cumulative_prod": "ct.cumprod(tile, axis)",
    "cumulative_sum": "ct.cumsum(tile, axis)",
    "debug_barrier": _ORDERED,
    "deg2rad": "tile * 0.017453292519943295",
    "device_print": _PRINT,
    "diag": _DIAGONAL.format("==", "tile"),
    "diagonal": _DIAGONAL.format("==", "tile"),
    "diff": "tile - ct.roll(tile, 1, axis), whose first elements are to be left out",
    "digitize": _BELOW,
    "div_rn": "x / y",
    "divide": "x / y",
    "dot": "ct.matmul(a, b), or ct.mma(a, b, acc), which adds to what there is",
    "dot_scaled": "ct.mmaf_scaled, which takes the scales behind the accumulator",
    "dropout": "ct.select(ct.rand(seed, counter) < 0.1, 0.0, tile / 0.9)",
    "einsum": "ct.mma(a, b, acc) of tiles whose axes ct.permute and reshape have brought in place",
    "elu": "ct.select(tile > 0.0, tile, ct.expm1(tile))",
    "empty": _SHAPED,
    "empty_like": "ct.constant(value, tile.shape, tile.dtype)",
    "equal": "x == y",
    "exclusive_scan": "ct.cumsum(tile, axis) - tile",
    "exp10": "ct.pow(10.0, tile)",
    "expand": "ct.broadcast(tile, shape)",
    "expand_dims": "tile.reshape(shape), or tile[:, None]",
    "eye": _DIAGONAL.format("==", "1.0"),
    "fabs": "abs(tile)",
    "fdiv": "x / y",
    "ffs": "ct.popcount((a & -a) - 1) + 1, which takes integers other than 0",
    "fix": "ct.trunc(tile)",
    "flatnonzero": _CHOSEN,
    "floor_divide": "x // y",
    "fmax": "ct.max_tile(x, y)",
    "fmin": "ct.min_tile(x, y)",
    "fmod": "ct.remf(x, y)",
    "frac": "tile - ct.trunc(tile)",
    "full": _SHAPED,
    "full_like": "ct.constant(value, tile.shape, tile.dtype)",
    "gamma": "ct.exp(ct.lgamma(x)), which takes numbers above 0",
    "gammaln": "ct.lgamma(x)",
    "gelu": "0.5 * x * (1.0 + ct.erf(x * 0.7071067811865476))",
    "greater": "x > y",
    "gridDim": "ct.get_num_tile_blocks()",
    "group_norm": _NORM,
    "heaviside": "ct.select(tile > 0.0, 1.0, 0.0)",
    "histogram": "ct.atomic_add(counts, values, 1), as docs/reaching_memory.md does",
    "identity": _DIAGONAL.format("==", "1.0"),
    "inclusive_scan": "ct.cumsum(tile, axis)",
    "index_select": "ct.gather(x, index)",
    "inf": "float('inf')",
    "inline_asm_elementwise": "it with the language's operations: there is no inline assembly",
    "inner": "ct.reduce_sum(x * y, axis)",
    "interleave": _STACKED,
    "interp": "ct.gather(x, index) of both neighbours, each times its weight",
    "invert": "~a",
    "isclose": "abs(x - y) <= 1e-6",
    "join": _STACKED,
    "kron": "(x[:, None, :, None] * y[None, :, None, :]).reshape((64, 64))",
    "laneid": _THREAD,
    "layer_norm": _NORM,
    "ldexp": "x * ct.exp2(y)",
    "ldg": _EXPECTED,
    "leaky_relu": "ct.select(tile > 0.0, tile, 0.01 * tile)",
    "left_shift": "a << b",
    "lerp": "x + value * (y - x)",
    "less": "x < y",
    "linspace": "start + step * ct.iota(8).astype(ct.f32)",
    "load": _EXPECTED,
    "local_array": "a tile: ct.constant(0, shape, dtype)",
    "log_softmax": "tile - ct.reduce_max(tile) - ct.log(ct.reduce_sum(ct.exp(tile - ct.reduce_max(tile))))",
    "logical_and": "condition & mask",
    "logical_not": "~condition",
    "logical_or": "condition | mask",
    "logical_xor": "condition ^ mask",
    "logit": "ct.log(x / (1.0 - x))",
    "logsumexp": "ct.reduce_max(tile) + ct.log(ct.reduce_sum(ct.exp(tile - ct.reduce_max(tile))))",
    "make_block_ptr": _TILES,
    "make_tensor_descriptor": _TILES,
    "masked_fill": "ct.select(mask, value, tile)",
    "max": _MAX,
    "max_contiguous": "nothing: accesses know the strides",
    "maximum": "ct.max_tile(x, y)",
    "median": "ct.sort(tile, axis), and ct.extract the middle",
    "meshgrid": "nothing: ct.iota(8)[:, None] beside ct.iota(8)[None, :] is a grid",
    "min": _MIN,
    "minimum": "ct.min_tile(x, y)",
    "mod": "x % y",
    "modf": "ct.trunc(tile), and the fraction tile - ct.trunc(tile)",
    "move_axis": "ct.permute(tile, axes)",
    "moveaxis": "ct.permute(tile, axes)",
    "mulhi": "ct.mulhii(a, b)",
    "multiple_of": "ct.assume_div_by(index, divisor)",
    "multiply": "x * y",
    "nan_to_num": "ct.select(ct.isnan(tile), 0.0, tile)",
    "nanmax": "ct.reduce_max(ct.select(ct.isnan(tile), float('-inf'), tile), axis)",
    "nanmin": "ct.reduce_min(ct.select(ct.isnan(tile), float('inf'), tile), axis)",
    "nansum": "ct.reduce_sum(ct.select(ct.isnan(tile), 0.0, tile), axis)",
    "negative": "-tile",
    "newaxis": "None, as in tile[:, None]",
    "nonzero": _CHOSEN,
    "norm": "ct.sqrt(ct.reduce_sum(tile * tile, axis))",
    "normal": "ct.randn(seed, counter)",
    "num_blocks": "ct.get_num_tile_blocks()[axis]",
    "num_ctas": "CompileOptions(num_cta_in_cga=...) on the host",
    "num_programs": "ct.get_num_tile_blocks()[axis]",
    "num_warps": "CompileOptions(num_worker_warps=...) on the host",
    "ones": "ct.constant(1, shape, dtype)",
    "ones_like": "ct.constant(1, tile.shape, tile.dtype)",
    "outer": "x[:, None] * y[None, :]",
    "pad": "nothing: loads pad past the edges of a tensor, and padding=... says with which number",
    "partition": _TILES,
    "percentile": "ct.sort(tile, axis), and ct.extract of a place",
    "pi": "3.141592653589793",
    "popc": "ct.popcount(a)",
    "population_count": "ct.popcount(a)",
    "power": "ct.pow(x, y)",
    "prefix_sum": "ct.cumsum(tile, axis)",
    "printf": _PRINT,
    "prod": "ct.reduce_prod(tile, axis)",
    "program_id": "ct.get_tile_block_id()[axis]",
    "ptp": "ct.reduce_max(tile, axis) - ct.reduce_min(tile, axis)",
    "quantile": "ct.sort(tile, axis), and ct.extract of a place",
    "rad2deg": "tile * 57.29577951308232",
    "randint4x": "ct.philox(seed, counter)",
    "random": "ct.rand(seed, counter)",
    "range": "for i in range(start, stop, step), Python's own",
    "ravel": "tile.reshape((-1,))",
    "reciprocal": "1.0 / tile",
    "relu": "max(tile, 0.0)",
    "relu6": "ct.clamp(tile, 0.0, 6.0)",
    "remainder": "x % y",
    "repeat_interleave": "ct.repeat(tile, count, axis)",
    "right_shift": "a >> b",
    "rint": "round(tile), Python's own",
    "rms_norm": _NORM,
    "round": "round(tile), Python's own",
    "searchsorted": _BELOW,
    "shape": "tile.shape",
    "shared": "a tile: the compiler decides what lies in shared memory",
    "shfl_down_sync": _SHUFFLED,
    "shfl_sync": _SHUFFLED,
    "shfl_xor_sync": _SHUFFLED,
    "shuffle": _SHUFFLED,
    "sign": "ct.select(tile > 0, 1.0, ct.select(tile < 0, -1.0, 0.0 * tile))",
    "signbit": "ct.copysign(1.0, tile) < 0.0",
    "silu": "tile * ct.sigmoid(tile)",
    "softmax": "the exponentials over their sum, as kernels/softmax.py does",
    "softplus": "max(tile, 0.0) + ct.log1p(ct.exp(-abs(tile)))",
    "split": "ct.extract(tile, index, shape)",
    "square": "tile * tile",
    "squeeze": "tile.reshape(shape)",
    "stack": _STACKED,
    "static_print": _PRINT,
    "std": "ct.sqrt(ct.var(tile, axis))",
    "store": _WRITTEN,
    "subtract": "x - y",
    "sum": _SUM,
    "swapaxes": "ct.permute(tile, axes)",
    "swish": "tile * ct.sigmoid(tile)",
    "swizzle2d": "z.partition(shape).map((8, 1), blocks) on the host, whose order goes down eight rows of tiles",
    "sync": _ORDERED,
    "synchronize": _ORDERED,
    "syncthreads": _ORDERED,
    "take": "ct.take_along_axis(tile, places, axis)",
    "take_along_dim": "ct.take_along_axis(tile, places, axis)",
    "thread_idx": _THREAD,
    "threadIdx": _THREAD,
    "to": "tile.astype(dtype)",
    "topk": _TOP,
    "trace": f"ct.reduce_sum({_DIAGONAL.format('==', 'tile')})",
    "trans": "tile.transpose()",
    "tril": _DIAGONAL.format(">=", "tile"),
    "triu": _DIAGONAL.format("<=", "tile"),
    "umulhi": "ct.mulhii(a, b)",
    "uniform": "ct.rand(seed, counter)",
    "unique": "ct.sort(tile, axis): how many differ is known only when the kernel runs",
    "unsqueeze": "tile[:, None], or tile.reshape(shape)",
    "vdot": "ct.reduce_sum(x * y)",
    "view": "tile.reshape(shape)",
    "warpid": _THREAD,
    "where": "ct.select(condition, a, b)",
    "xor_sum": "ct.reduce, with the identity 0 and lambda a, b: a ^ b",
    "zeros": "ct.constant(0, shape, dtype)",
    "zeros_like": "ct.constant(0, tile.shape, tile.dtype)",
}
"""By the name of a function or constant of another library's module."""

_COPY = "the tile itself: values do not change"
METHODS: dict[str, str] = {
    "T": "tile.transpose()",
    "abs": "abs(tile)",
    "bool": "tile != 0",
    "cast": "tile.astype(dtype)",
    "clip": "ct.clamp(tile, low, high)",
    "clone": _COPY,
    "contiguous": "nothing: tiles have no strides",
    "copy": _COPY,
    "cumsum": "ct.cumsum(tile, axis)",
    "dim": "tile.ndim",
    "dot": "a @ b, or ct.mma(a, b, acc)",
    "double": "tile.astype(ct.f64)",
    "expand": "tile.broadcast(shape)",
    "flatten": "tile.reshape((-1,))",
    "float": "tile.astype(ct.f32)",
    "half": "tile.astype(ct.f16)",
    "int": "tile.astype(ct.i32)",
    "item": "tile.reshape(()), which makes a tile of one element a scalar",
    "long": "tile.astype(ct.i64)",
    "masked_fill": "ct.select(mask, value, tile)",
    "max": _MAX,
    "mean": "ct.mean(tile, axis)",
    "min": _MIN,
    "numel": "tile.shape, whose extents are constants",
    "permute": "ct.permute(tile, axes)",
    "pow": "tile ** 2",
    "prod": "ct.reduce_prod(tile, axis)",
    "ravel": "tile.reshape((-1,))",
    "round": "round(tile)",
    "size": "tile.shape, whose extents are constants",
    "squeeze": "tile.reshape(shape)",
    "std": "ct.sqrt(ct.var(tile, axis))",
    "sum": _SUM,
    "to": "tile.astype(dtype)",
    "type": "tile.astype(dtype)",
    "unsqueeze": "tile[:, None], or tile.reshape(shape)",
    "view": "tile.reshape(shape), or ct.bitcast(tile, dtype)",
    "where": "ct.select(condition, a, b)",
}
"""By the name of a method or attribute of a tile."""


TENSORS: dict[str, str] = {
    "T": "x.partition_permuted(shape, (1, 0)), whose tiles are transposed",
    "gather": "ct.gather(x, index)",
    "numel": "x.shape[0] * x.shape[1]",
    "reshape": "it on the host, x.reshape(shape), or a loaded tile's reshape",
    "scatter": "ct.scatter(y, index, value)",
    "size": "x.shape[axis]",
    "stride": "x.strides[axis]",
    "sum": "ct.reduce_sum(tile, axis) of loaded tiles",
    "transpose": "x.partition_permuted(shape, (1, 0)), whose tiles are transposed",
    "view": "it on the host, or a loaded tile's reshape",
}
"""By the name of a method or attribute of a tensor."""

_WHOLE = "ct.get_tensor_shape(y), of the whole tensor; y.shape is the tile's"
OUTPUTS: dict[str, str] = {
    "full_shape": _WHOLE,
    "grid": "ct.get_num_tile_blocks()",
    "numel": _WHOLE,
    "size": _WHOLE,
    "tensor_shape": _WHOLE,
}
"""By the name of an attribute of a `Mut`. Those of `TENSORS` hold for a `Mut`, too."""

MODULES = frozenset(("tl", "triton", "cuda", "torch", "F", "jnp", "hl"))
"""The usual names of other libraries' modules."""

ARGUMENTS: dict[str, str] = {
    "boundary_check": "Loads pad and stores clip at the edges of the tensor by themselves.",
    "cache_modifier": "Caches are the compiler's.",
    "clamp": "ct.clamp(tile, low, high)",
    "clip": "ct.clamp(tile, low, high)",
    "correction": "It is called ddof.",
    "dim": "The axis is called axis.",
    "dtype": "Convert the tile: tile.astype(dtype).",
    "eviction_policy": "Caches are the compiler's.",
    "flip": "ct.flip(tile, axis)",
    "isnan": "ct.isnan(tile)",
    "keepdim": "It is called keepdims.",
    "keep_dims": "It is called keepdims.",
    "indices": "They are called places.",
    "key": "Sort by it: ct.take_along_axis(tile, ct.argsort(key, axis), axis).",
    "kind": "Sorts are stable.",
    "largest": "The least are the largest of -tile.",
    "stable": "Sorts are stable.",
    "reverse": "The largest come first with descending=True.",
    "mask": "Loads pad and stores clip at the edges of the tensor by themselves; ct.gather and ct.scatter take masks.",
    "matmul": "a @ b",
    "other": "What lies past the edges is padding=ct.padding.NEG_INF and its kin; ct.gather takes padding_value.",
    "padding_option": "Write padding=ct.padding.NEG_INF, or another of its members.",
    "round": "round(tile), Python's own",
    "sigmoid": "ct.sigmoid(tile)",
    "std": "ct.sqrt(ct.var(tile, axis))",
    "step": "Write range(start, stop, step).",
    "var": "ct.var(tile, axis)",
}
"""By the name of an argument that another library has."""


_DTYPE = re.compile(r"half|double|bool|b?float\d\w*|u?int\d+")
_WAITS = ("synchronize", "current_stream", "set_device", "stream", "wait")

LIBRARIES = ("cupy", "jax", "numba", "numpy", "random", "scipy", "torch", "triton")
"""Libraries whose functions are not compiled with a kernel, though some are written in Python."""


def library_of(function: Any) -> str | None:
    """The library of a function, if kernels cannot call the functions of that library."""
    root = (getattr(function, "__module__", None) or "").partition(".")[0]
    return root if root in LIBRARIES else None


def in_language(name: str) -> str | None:
    """The counterpart of another library's name in the language; None without one."""
    if name in FUNCTIONS:
        return f"Write {FUNCTIONS[name]}."
    if hasattr(getattr(language, name, None), "__cutile__"):
        return f"Write ct.{name}, the language's own."
    return None


def dtype_named(name: str) -> str | None:
    """The dtype behind another library's name: `ct.f32` for `float32`."""
    with suppress(TypeError):
        return f"ct.{as_dtype(name).__name__}" if _DTYPE.fullmatch(name) else None
    return None


def in_module(owner: types.ModuleType, name: str) -> str:
    """The remedy for a name that a module does not have."""
    if owner.__name__ == "cuda_async" or (owner.__name__ == "cutile.host.api" and name in _WAITS):
        return "Streams, devices and waits are the host's: a kernel has none of them."
    if owner.__name__ in ("cutile", "cutile.host.api"):
        if dtype := dtype_named(name):
            return f"Write {dtype}."
        if owner.__name__ != "cutile" and (words := in_language(name)):
            return words
    public: Iterable[str] = dir(owner) if owner.__name__ == "cutile" else getattr(owner, "__all__", None) or dir(owner)
    if owner.__name__ == "cutile" and name in FUNCTIONS:
        return f"Write {FUNCTIONS[name]}."
    near = closest(name, list(public))
    return f"Did you mean {near[0]!r}?" if near else f"dir({owner.__name__}) lists what it has."


def of_tile(name: str, candidates: Iterable[str]) -> str:
    """The remedy for a method or attribute that a tile does not have."""
    if name in METHODS:
        return f"Write {METHODS[name]}."
    if hasattr(getattr(language, name, None), "__cutile__"):
        return f"It is a function: ct.{name}(tile, ...)."
    return among(name, candidates)


def of_tensor(name: str, known: Iterable[str]) -> str:
    """The remedy for a method or attribute that a tensor does not have."""
    return f"Write {TENSORS[name]}." if name in TENSORS else among(name, known)


def of_mut(name: str, known: Iterable[str]) -> str:
    """The remedy for a method or attribute that a `Mut` does not have."""
    return f"Write {OUTPUTS[name]}." if name in OUTPUTS else of_tensor(name, known)


def of_text(name: str, known: Iterable[str]) -> str:
    """The remedy for a method or attribute that a string does not have."""
    near = closest(name, list(known))
    return f"Did you mean {near[0]!r}?" if near else "It has Python's methods that take and give constants, as split."


def among(name: str, candidates: Iterable[str]) -> str:
    """The remedy for a name that is none of the candidates: the nearest, and all."""
    names = sorted(candidates)
    near = closest(name, names)
    return (f"Did you mean {near[0]!r}? " if near else "") + f"It has {', '.join(names)}."


def for_function(function: Any) -> str | None:
    """The remedy for a call of another library's function that has a counterpart.

    `np.exp` is `ct.exp`.
    """
    name = getattr(function, "__name__", "")
    if isinstance(function, type) and issubclass(function, np.generic):
        with suppress(TypeError):
            return f"Write ct.{as_dtype(function).__name__}(x), which converts scalars and tiles."
    if function is functools.partial:
        return "Write a lambda, lambda t: helper(2, t), or make the partial outside of the kernel."
    if function in (map, filter):
        return f"Write a comprehension: [helper(item) for item in items{' if wanted(item)' * (function is filter)}]."
    if isinstance(function, enum.EnumMeta):
        return f"Name the member: {function.__name__}.{next(iter(function.__members__), 'NAME')}."
    if function is dict:
        return "Write {key: value, ...}, or a comprehension: {key: value for key, value in items}."
    wrapped = cast("Any", function)
    if isinstance(getattr(wrapped, "py_func", None), types.FunctionType):
        return "A kernel compiles plain functions: have it call the one behind, function.py_func, named outside of it."
    if isinstance(getattr(wrapped, "__self__", None), random.Random):
        return "Write ct.rand(seed, counter), ct.randn or ct.randint: each counter has a number of its own."
    return in_language(name)


_FOREIGN_NAMES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
"""Other libraries' names of dtypes, near which a misspelt name may be."""


def compared_with_dtype(left: Any, right: Any) -> tuple[Any, str] | None:
    """The wrong operand of `x.dtype == np.float32`, and the dtype to write instead.

    Such a comparison is always false. None if neither operand is a dtype, or if false is the right answer.
    """
    for dtype, other in ((left, right), (right, left)):
        items = cast("tuple[Any, ...]", other) if isinstance(other, tuple) else (other,)
        for item in items:
            if isinstance(dtype, DTypeMeta) and isinstance(item, str | type) and not isinstance(item, DTypeMeta):
                with suppress(TypeError):
                    return item, f"ct.{as_dtype(item).__name__}"
                near = closest(str(item), [other.name for other in EVERY_DTYPE] + _FOREIGN_NAMES)
                if not isinstance(item, type) and near:
                    return item, f"ct.{as_dtype(near[0]).__name__}, if that is meant"
    return None
