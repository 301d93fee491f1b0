"""The default tile of a matrix product: the fastest one by a model of the device.

`gemm_model.py` has the model. This file says for which devices, element types and layouts it is used, and which tiles
the others get.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypedDict

from cuda_async import Device
from cutile import DType, Tensor, bf16, f8e4m3fn, f8e5m2, f16, f32, i8, tf32, u8
from kernels.gemm_model import AMPERE, HOPPER, ROWS, Chip, Choice, best, candidates

EXACT = {(128, 128): 2.8e-6, (64, 128): 1.5e-6, (128, 64): 1.5e-6, (64, 64): 0.85e-6, (32, 64): 0.6e-6}
"""f32 by fused multiply-adds: measured seconds of a step of 32 of K, for each tile (rows, columns), on an H200."""

DEEP_K, DEEP = 6144, 64
"""From DEEP_K of K on, f32 tiles of 128 x 128 take steps of DEEP in place of 32. Measured on an H200: at 8192 cubed,
row-major, 0.978 of cuBLAS in place of 0.964, and again 0.968 in place of 0.958. Relative to steps of 32: 0.986 at 2048,
0.997 at 3072, 0.992 at 4096, 1.015 at 6144, 1.014 at 8192; 0.951 to 0.977 if the right operand lies along K."""

Lie = Literal["along", "left across", "right across", "both across", "otherwise"]
"""How both operands lie (see `how_they_lie`)."""

HOST = Choice(256, 512, 256)
"""On the CPU: each step is one call of a BLAS."""

PLAIN = Choice(128, 128, 32)
"""f32 and f64 on a GPU, by fused multiply-adds or by `mma.sync`."""

BYTES = Choice(128, 128, 64)
"""8 bits, by `mma.sync`."""

ROUNDED: dict[Lie, Choice] = {"along": Choice(128, 64, 32)}
"""tf32 on sm_80, by `mma.sync`: operands that are rounded in registers fit beside the accumulators of such a tile."""
ROUNDED_ACROSS = Choice(128, 128, 16)
"""The same if an operand lies across K."""

ALONG_K = (i8, u8, f8e4m3fn, f8e5m2, tf32)
"""Types that `wgmma` is used for only if at least one operand is contiguous along K."""

EIGHTS = (f8e4m3fn, f8e5m2)
"""The 8-bit floats."""
MANY = 16
"""Waves of tiles from which on products of 8-bit floats gain by fewer loads, because the GPU is at its power limit."""


class Facts(TypedDict):
    """Facts for `choose` about a product, in addition to its extents; the arguments of `choose` explain them."""

    held: int
    lie: Lie
    halves: bool
    fast: bool
    three: bool


def choose(
    m: int,
    n: int,
    k: int,
    dtype: type[DType],
    device: Device,
    *,
    batch: int = 1,
    held: int = 1,
    lie: Lie = "otherwise",
    halves: bool = False,
    fast: bool = False,
    three: bool = False,
) -> Choice:
    """The tile for `batch` products of (m, k) by (k, n) on a device.

    Args:
        m, n, k: extents of a product.
        dtype: of the operands.
        device: where it runs.
        batch: how many such products.
        held: tiles of the result's size that a thread block holds at once: the accumulators, and a residual.
        lie: how the operands lie (see `how_they_lie`).
        halves: whether the kernel may be ping-pong: each warpgroup has a tile of its own (see `may_be_halved`).
        fast: whether sums of 8-bit floats are left to the tensor cores.
        three: whether three warpgroups may share a tile, because the epilogue is only a conversion.

    Example:
        >>> choose(2048, 2048, 2048, f16, Device.host())
        Choice(rows=256, columns=512, depth=256, seconds=0.0, cluster=1, pieces=1, halved=False)
    """
    if device.kind != "cuda":
        return HOST
    units = device.properties.multiprocessor_count
    model = _model(dtype, device.arch, held, lie, halves, fast, three)
    if model is not None:
        turned = model.turned  # the product is computed as its transpose
        found = best(*((n, m) if turned else (m, n)), k, model.chip, units, batch=batch, **model.facts)
        if model.paired and -(-m // found.rows) * -(-n // found.columns) * batch >= MANY * units:
            found = _paired(found)
        return _turned(found) if turned else found
    if _exact(dtype, device.arch, lie):
        return best_exact(m, n, k, units, batch=batch, lie=lie)
    return _by_single_warps(dtype, device.arch, lie)


def every_choice(
    dtype: type[DType],
    arch: str,
    *,
    batch: int = 1,
    held: int = 1,
    lie: Lie = "otherwise",
    halves: bool = False,
    fast: bool = False,
    three: bool = False,
) -> list[Choice]:
    """All that `choose` can return on a GPU of an architecture, for any extents; arguments as there.

    Example:
        >>> sorted({(each.rows, each.columns) for each in every_choice(f16, "sm_80")})
        [(64, 64), (64, 128), (128, 64), (128, 128)]
    """
    model = _model(dtype, arch, held, lie, halves, fast, three)
    if model is None:
        tiles = [Choice(*tile, PLAIN.depth) for tile in EXACT] + [replace(PLAIN, depth=DEEP)]
        return tiles if _exact(dtype, arch, lie) else [_by_single_warps(dtype, arch, lie)]
    # The candidates depend on the extents only by these thresholds of m.
    least = (
        1,
        *(rows + 1 for rows in (*model.chip.few, *model.chip.rows)),
        1 << 20,
    )
    found = [each for m in least for each in candidates(m, 1 << 13, 1 << 13, model.chip, batch=batch, **model.facts)]
    if model.paired:
        found += [_paired(each) for each in found]
    return list(dict.fromkeys(_turned(each) if model.turned else each for each in found))


class _Told(TypedDict):
    """Keyword arguments of `gemm_model.best` about a product's operands."""

    held: int
    bits: int
    along: bool
    halves: bool
    three: bool


@dataclass(frozen=True)
class _Model:
    """How the model is used for a kind of product.

    Attributes:
        chip: the kind of device.
        facts: the arguments of `best`.
        turned: whether the product is computed as its transpose.
        paired: whether, if there are many tiles, two thread blocks share the columns that they load.
    """

    chip: Chip
    facts: _Told
    turned: bool = False
    paired: bool = False


def _model(dtype: type[DType], arch: str, held: int, lie: Lie, halves: bool, fast: bool, three: bool) -> _Model | None:
    """The use of the model for a kind of product; None if the model does not cover it."""
    hopper = arch == "sm_90a"
    if dtype in (f16, bf16):
        along = lie in ("along", "right across")  # a swap of A and B, for few rows, needs a left operand along K
        told: _Told = {"held": held, "bits": 16, "along": along, "halves": halves, "three": three and along}
        return _Model(HOPPER if hopper else AMPERE, told)
    if dtype in ALONG_K and hopper and lie not in ("both across", "otherwise"):
        if dtype in EIGHTS and not fast:
            held = max(held, 2)  # partial accumulators, besides the accumulators
        facts: _Told = {"held": held, "bits": dtype.bits, "along": lie == "along", "halves": False, "three": False}
        return _Model(
            HOPPER, facts, turned=lie == "right across", paired=dtype in EIGHTS and not fast and lie == "along"
        )
    return None


def _paired(tile: Choice) -> Choice:
    """The tile with two thread blocks that share the columns that they load, if they share nothing else."""
    alone = tile.cluster == tile.pieces == 1 and not tile.halved
    return replace(tile, cluster=2) if alone and tile.columns > tile.rows > ROWS else tile


def _turned(tile: Choice) -> Choice:
    return replace(tile, rows=tile.columns, columns=tile.rows)


def _by_single_warps(dtype: type[DType], arch: str, lie: Lie) -> Choice:
    """The tile of products that the model does not cover."""
    if dtype is tf32 and arch.startswith("sm_8"):
        return ROUNDED.get(lie, ROUNDED_ACROSS)
    return BYTES if dtype.bits == 8 else PLAIN


def _exact(dtype: type[DType], arch: str, lie: Lie) -> bool:
    """Whether the product is of f32, by fused multiply-adds in a warp-specialised kernel."""
    return dtype is f32 and arch == "sm_90a" and lie != "otherwise"


def how_they_lie(x: Tensor, y: Tensor) -> Lie:
    """How the operands `x`, of shape (m, k), and `y`, of shape (k, n), lie in memory.

    Returns:
        "along" if both are contiguous along K, "left across", "right across" or "both across" if these are contiguous
        along their other axis, "otherwise" if TMA cannot load them: not contiguous, or not aligned to 16 bytes.
    """
    left, right = x.spec().layout, y.spec().layout
    if not left.alignment == right.alignment == 16:
        return "otherwise"
    if left.strides[-1] == 1:
        return "along" if right.strides[-2] == 1 else "right across" if right.strides[-1] == 1 else "otherwise"
    if left.strides[-2] == 1:
        return "left across" if right.strides[-2] == 1 else "both across" if right.strides[-1] == 1 else "otherwise"
    return "otherwise"


def best_exact(m: int, n: int, k: int, units: int, *, batch: int = 1, lie: Lie = "right across") -> Choice:
    """The fastest tile for a product of f32 on Hopper, by the measured seconds of a step.

    Example:
        >>> found = best_exact(512, 512, 512, 132)  # 128 by 128 would leave all but 16 multiprocessors idle
        >>> found.rows * found.columns < 64 * 128
        True
    """
    tried = [
        Choice(*tile, PLAIN.depth, -(-batch * -(-m // tile[0]) * -(-n // tile[1]) // units) * -(-k // 32) * step)
        for tile, step in EXACT.items()
    ]
    fastest = min(tried, key=lambda choice: choice.seconds)
    deep = lie == "right across" and k >= DEEP_K and (fastest.rows, fastest.columns) == (PLAIN.rows, PLAIN.columns)
    return replace(fastest, depth=DEEP) if deep else fastest


def may_be_halved(x: Tensor, y: Tensor, out: Tensor | None) -> bool:
    """Whether the kernel may be ping-pong: each of two warpgroups has a tile of its own.

    TMA has to load the operands and to store the result, `out` or a new tensor, and the epilogue has to be a
    conversion.
    """
    if x.ndim != 2 or how_they_lie(x, y) == "otherwise":
        return False
    if out is None:
        return y.shape[1] * x.dtype.bits % 128 == 0
    layout = out.spec().layout
    return layout.strides[-1] == 1 and layout.alignment == 16 and out.dtype in (f16, bf16)
