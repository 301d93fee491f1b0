# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false
# (torch ships no types that it needs)
"""The cases of `benchmarks.memory`: sums, scans, moves and rows by index, and the list of all."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.memory import kernels as k
from benchmarks.memory.case import MANY, Array, Case, Kind, suffix, times
from benchmarks.memory.rows import (
    add_rms_norm,
    cross_entropy,
    cross_entropy_backward,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
    silu_times,
    softmax,
    softmax_backward,
)
from cuda_async import DeviceOp
from cutile import CompileOptions, Tensor, api, bf16, f32, i32, u64
from cutile.host.kernels import SCAN_TILES, scan_launch, scan_sizes

# -- sums, and scans ---------------------------------------------------------


def cumsum(columns: int, rows: int = 0, dtype: Kind = f32, *, long: int = 0) -> Case:
    """Running sums of rows."""
    shape = times(rows, columns)

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        target = outs[0].mut.partition((1, columns))
        if long:  # pieces of 16384, 64 elements a thread, are 0.92 of a copy; of 4096 by the compiler's warps 0.90
            yield k.long_cumsum(target, ins[0], B=long).compile_options(CompileOptions(num_worker_warps=8))
        else:
            yield k.cumsum(target, ins[0])

    return Case(
        f"cumsum f32 {columns}{suffix(rows)}", (Array(shape, dtype),), (Array(shape, dtype),), ops,
        lambda xp, x: xp.cumsum(x, 1), lambda torch, x: torch.cumsum(x, 1), 0.95 if columns < 65536 else 0.92,
        error=3e-5,
    )  # fmt: skip


def _power(n: int) -> str:
    """A number as a power of two, plus or minus the difference."""
    nearest = (n - 1).bit_length() if n & (n - 1) else n.bit_length() - 1
    return f"2**{nearest}" + (f" - {(1 << nearest) - n}" if n & (n - 1) else "")


def total(n: int, blocks: int = 1056) -> Case:
    """The sum of an array: partial sums, and their sum."""

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        yield k.partial_sums(outs[1].mut.partition((1,)), ins[0])
        yield k.partial_sums(outs[0].mut.partition((1,)), outs[1], B=2048)

    return Case(
        f"sum f32 {_power(n)}", (Array((1,), f32),), (Array((n,), f32, "positive"),), ops,
        lambda xp, x: x.sum().reshape(1), lambda torch, x: torch.sum(x), 1.0, reads=True,
        scratch=(Array((blocks,), f32),), error=1e-5,
    )  # fmt: skip


def column_sums(rows: int, columns: int, dtype: Kind = bf16, *, groups: int = 66, width: int = 512) -> Case:
    """The sums of columns: sums over groups of rows, then the sums of these."""

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        yield k.column_sums(outs[1].mut.partition((1, width)), ins[0])
        yield k.column_sums(outs[0].mut.partition((1, 128)), outs[1])

    return Case(
        f"column sums {rows} x {columns}", (Array((1, columns), f32),), (Array((rows, columns), dtype, "positive"),),
        ops,
        lambda xp, x: x.sum(0).reshape(1, columns), lambda torch, x: torch.sum(x, 0, dtype=torch.float32), 0.93,
        reads=True, scratch=(Array((groups, columns), f32),), error=1e-5,
    )  # fmt: skip


def gemv(rows: int, columns: int, dtype: Kind = bf16, *, height: int = 4) -> Case:
    """A matrix times a vector; a tile block has one whole row, or loops over pieces of several."""

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        y = outs[0].mut.partition((height,))
        yield k.gemv(y, *ins) if height > 1 else k.gemv_rows(y, *ins, N=columns)

    return Case(
        f"gemv {rows} x {columns}", (Array((rows,), dtype),), (Array((rows, columns), dtype), Array((columns,), dtype)),
        ops, lambda xp, a, x: a @ x, lambda torch, a, x: torch.mv(a, x), 0.95, reads=True,
    )  # fmt: skip


def array_cumsum(n: int, dtype: Kind = i32) -> Case:
    """Running sums of an array, as `api.cumsum` computes them."""
    words = max(scan_sizes(n, dtype, tiles.shared_bytes).words for tiles in SCAN_TILES)

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        y, state = outs
        sizes = scan_sizes(n, dtype, y.device.shared_memory_bytes)
        yield api.fill(state, 0)
        yield scan_launch(y.mut.partition((sizes.tile,)), ins[0], state, operator.add, 0, dtype, sizes.occupancy)

    return Case(
        f"cumsum {dtype} 2**{n.bit_length() - 1}", (Array((n,), dtype),),
        (Array((n,), dtype, "positive", below=8 if dtype is i32 else 0),), ops,
        lambda xp, x: xp.cumsum(x, 0), lambda torch, x: torch.cumsum(x, 0, dtype=x.dtype), 0.85,
        scratch=(Array((words,), u64),), error=0 if dtype is i32 else 1e-5,
    )  # fmt: skip


def compaction(n: int, tile: int = 8192) -> Case:
    """Compaction of the half of an array that is above 0, with the tile and options that the recipe recommends."""
    options = CompileOptions(num_worker_warps=8, occupancy=3)
    blocks = -(-n // tile)

    def ops(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> Iterator[DeviceOp[Any]]:
        y, counts, state = outs
        yield api.fill(state, 0)
        tiles = y.mut.partition((tile,)), counts.mut.partition((1,))
        yield k.compacted(*tiles, ins[0], 0.0, state).compile_options(options)

    def exact(xp: Any, x: Any) -> Any:
        return xp.concatenate((x[x > 0], 0 * x[x <= 0]))

    return Case(
        f"compaction f32 {_power(n)}", (Array((n,), f32),), (Array((n,), f32),), ops, exact,
        None, 0.7, scratch=(Array((blocks,), i32), Array((2 * blocks,), u64)),
        moved=6 * n, adds=True, error=0,
    )  # fmt: skip


# -- moves ----------------------------------------------------------------------------------------


def transpose(n: int, dtype: Kind, tile: int = 64) -> Case:
    """A matrix, transposed."""
    return Case(
        f"transpose {dtype} {n}{suffix(0, tile if tile > 64 else 0)}",
        (Array((n, n), dtype),), (Array((n, n), dtype),),
        lambda outs, ins: [k.transpose(outs[0].mut.partition((tile, tile)), ins[0])],
        lambda xp, x: xp.swapaxes(x, 0, 1), lambda torch, x: x.t().contiguous(), 0.93, error=0,
    )  # fmt: skip


def permute(batch: int, m: int, n: int, dtype: Kind = bf16, tile: int = 64) -> Case:
    """The last two axes, exchanged."""
    return Case(
        f"permute (0, 2, 1) {dtype}", (Array((batch, n, m), dtype),), (Array((batch, m, n), dtype),),
        lambda outs, ins: [k.permute(outs[0].mut.partition((1, tile, tile)), ins[0])],
        lambda xp, x: xp.swapaxes(x, 1, 2), lambda torch, x: x.permute(0, 2, 1).contiguous(), 0.93, error=0,
    )  # fmt: skip


def cast(n: int) -> Case:
    """f32 to bf16."""
    return Case(
        "cast f32 to bf16", (Array((n,), bf16),), (Array((n,), f32),),
        lambda outs, ins: [k.copy(outs[0].mut.partition((4096,)), ins[0])],
        lambda xp, x: x, lambda torch, x: x.to(torch.bfloat16), 0.97,
    )  # fmt: skip


def small_sum(rows: int, columns: int, many: int, dtype: Kind = bf16) -> Case:
    """A sum of two small matrices."""
    matrix = Array((rows, columns), dtype)
    return Case(
        f"sum of two {rows} x {columns}, graph of {many}", (matrix,), (matrix, matrix),
        lambda outs, ins: [k.add(outs[0].mut.partition((1, columns)), *ins)],
        lambda xp, x, y: x + y, lambda torch, x, y: x + y, 0.95, many=many,
    )  # fmt: skip


def strided(rows: int, columns: int, stride: int, dtype: Kind = bf16) -> Case:
    """Every other part of the columns of a matrix, copied to a contiguous matrix."""
    return Case(
        f"copy of {columns} of {stride} columns", (Array((rows, columns), dtype),),
        (Array((rows, columns), dtype, stride=stride),),
        lambda outs, ins: [k.copy(outs[0].mut.partition((4, 1024)), ins[0])],
        lambda xp, x: x, lambda torch, x: x.contiguous(), 0.9, error=0,
    )  # fmt: skip


def copy(rows: int, columns: int, dtype: Kind = bf16) -> Case:
    """A copy of a matrix."""
    return Case(
        f"copy {rows} x {columns}", (Array((rows, columns), dtype),), (Array((rows, columns), dtype),),
        lambda outs, ins: [k.copy(outs[0].mut.partition((4, 1024)), ins[0])],
        lambda xp, x: x, lambda torch, x: x.clone(), 0.97, error=0,
    )  # fmt: skip


WIDE_OPTIONS = CompileOptions(num_worker_warps=16)
"""Warps of the concatenation: 16 elements a thread. With the compiler's choice it is 0.02 of a copy slower."""


def concatenate(rows: int, columns: int, dtype: Kind = bf16) -> Case:
    """Two matrices, side by side."""
    return Case(
        "concatenate", (Array((rows, 2 * columns), dtype),), (Array((rows, columns), dtype),) * 2,
        lambda outs, ins: [k.concatenate(outs[0].mut.partition((1, 2 * columns)), *ins).compile_options(WIDE_OPTIONS)],
        lambda xp, a, b: xp.concatenate((a, b), 1), lambda torch, a, b: torch.cat((a, b), 1), 0.95, error=0,
    )  # fmt: skip


def rotary(tokens: int, heads: int, width: int = 128, dtype: Kind = bf16, *, at_once: int = 16) -> Case:
    """Rotary embedding with tables of cosines and sines; a tile block has some heads of a token."""

    def exact(xp: Any, x: Any, cos: Any, sin: Any) -> Any:
        c, s, half = cos[:, None, :], sin[:, None, :], width // 2
        left, right = x[..., :half], x[..., half:]
        return xp.concatenate((left * c - right * s, right * c + left * s), 2)

    table = Array((tokens, width // 2), dtype)
    return Case(
        "rotary", (Array((tokens, heads, width), dtype),), (Array((tokens, heads, width), dtype), table, table),
        lambda outs, ins: [k.rotary(outs[0].mut.partition((1, at_once, width)), *ins)], exact,
        lambda torch, *ins: exact(torch, *ins), 0.93, error=6e-3,
    )  # fmt: skip


def dropout(n: int, dtype: Kind = bf16, tile: int = 4096) -> Case:
    """Dropout with Philox 4x32-10."""
    seed, keep = 20261123, 3 << 30

    def exact(xp: Any, x: Any) -> Any:
        quarter = tile // 4
        word = (1 << 32) - 1

        def product(a: Any, b: int) -> tuple[Any, Any]:
            low, high = (a & 0xFFFF) * b, (a >> 16) * b  # of 48 bits
            middle = high + (low >> 16)
            return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)

        n0 = xp.arange(n // 4, device=x.device)
        n1 = n2 = n3 = xp.zeros_like(n0)
        k0, k1 = seed, seed ^ 0x5BD1E995
        for _ in range(10):
            high0, low0 = product(n0, 0xD2511F53)
            high2, low2 = product(n2, 0xCD9E8D57)
            n0, n1, n2, n3 = high2 ^ n1 ^ k0, low2, high0 ^ n3 ^ k1, low0
            k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
        drawn = xp.stack([each.reshape(-1, quarter) for each in (n0, n1, n2, n3)], 1).reshape(n)
        return xp.where(drawn < keep, x * (4 / 3), xp.zeros_like(x))

    return Case(
        "dropout, Philox 4x32-10", (Array((n,), dtype),), (Array((n,), dtype),),
        lambda outs, ins: [k.dropout(outs[0].mut.partition((tile,)), ins[0], seed, keep, 4 / 3)], exact,
        lambda torch, x: torch.nn.functional.dropout(x, 0.25), 0.9,
    )  # fmt: skip


# -- rows by index --------------------------------------------------------------------------------


def gather(
    name: str, table: int, columns: int, count: int, dtype: Kind = bf16, *, height: int = 1, goal: float
) -> Case:
    """Rows of a table by a list."""
    options = CompileOptions(occupancy=4) if height == 1 else CompileOptions()
    return Case(
        name, (Array((count, columns), dtype),), (Array((table, columns), dtype), Array((count,), i32, below=table)),
        lambda outs, ins: [k.gather_rows(outs[0].mut.partition((height, columns)), *ins).compile_options(options)],
        lambda xp, t, index: t[index], lambda torch, t, index: torch.index_select(t, 0, index), goal, error=0,
        moved=2 * count * columns * dtype.bits // 8 + 4 * count,
    )  # fmt: skip


def scatter_add(table: int, columns: int, count: int, blocks: int = 8192) -> Case:
    """Rows added to the rows of a table whose numbers are in a list."""

    def exact(xp: Any, x: Any, index: Any) -> Any:
        y = xp.zeros((table, columns), dtype=x.dtype, device=x.device)
        return y.index_add_(0, index, x) if hasattr(y, "index_add_") else (xp.add.at(y, index, x), y)[1]

    rows = 3 * count * columns * 4
    return Case(
        f"scatter-add of {count} rows of {4 * columns} bytes", (Array((table, columns), f32),),
        (Array((count, columns), f32), Array((count,), i32, below=table)),
        lambda outs, ins: [k.scatter_add_rows(outs[0].mut.partition((-(-table // blocks), columns)), *ins)], exact,
        lambda torch, x, index: _sums(torch, table, columns).index_add_(0, index, x), 0.5,
        adds=True, moved=rows + 4 * count, error=1e-5,
    )  # fmt: skip


_kept: dict[tuple[int, int], Any] = {}


def _sums(torch: Any, *shape: int) -> Any:
    """One tensor that torch adds to, so that no time is spent on filling it with zeros."""
    if shape not in _kept:
        _kept[shape] = torch.zeros(shape, device="cuda")
    return _kept[shape]


ROWS = (1024, 4096, 8192, 16384, 32768, 65536)

RAGGED = (
    softmax(4000), softmax(4000, tile=4096), softmax(1024, 65535, height=4), softmax(4097),
    rms_norm(4000), rms_norm(4000, tile=4096), rms_norm(4096, 65535), rms_norm(4097),
    copy(16384, 8192), copy(16383, 8000), copy(16384, 8193), strided(16384, 8192, 16385),
    transpose(16384, bf16, 128), transpose(16384, f32, 128), transpose(16376, bf16, 128),
    transpose(16383, bf16, 128), transpose(16383, f32, 128),
    total((1 << 28) - 999), column_sums(65535, 8000), column_sums(65536, 8191),
)  # fmt: skip
"""Tiles with edges, and rows that are not aligned to 16 bytes, beside cases that have neither."""

MORE = 1 << 29
"""Elements of cases with more rows, in which the tail of the last thread blocks is a quarter as large a part."""

MANY_ROWS = (
    *(softmax(n, MORE // n) for n in (*ROWS[2:], 262144)), *(layer_norm(n, MORE // n) for n in ROWS[2:]),
    *(layer_norm(n, MORE // n, sums=True) for n in ROWS[3:]),
    *(rms_norm(n, MORE // n) for n in ROWS[2:]), cumsum(65536, MORE // 65536, long=16384),
    cross_entropy(32000, 4 * 4096),
)  # fmt: skip
"""Long rows of `MORE` elements in all."""

CASES = (
    softmax(1024, height=4), *(softmax(n) for n in (*ROWS[1:], 262144)), softmax_backward(65536),
    *(layer_norm(n) for n in ROWS), *(layer_norm(n, sums=True) for n in ROWS[3:]), *(rms_norm(n) for n in ROWS),
    cross_entropy(32000), cross_entropy(65536), cross_entropy(128256),
    *(cross_entropy_backward(n) for n in (32000, 65536, 128256)),
    *(make(n) for make in (layer_norm_backward, rms_norm_backward) for n in (4096, 8192)),
    *(add_rms_norm(n, scales=each) for each in ("", "row", "128") for n in (4096, 8192)),
    *(silu_times(n) for n in (4096, 8192)),
    total(1 << 28), total(1 << 30), column_sums(65536, 8192),
    cumsum(4096), cumsum(65536, long=16384), array_cumsum(1 << 28), array_cumsum(1 << 28, f32), compaction(1 << 28),
    transpose(16384, f32), transpose(16384, bf16), permute(64, 2048, 2048),
    rotary(16384, 32), dropout(MANY), gather("embedding 4096", 128256, 4096, 32768, goal=0.96),
    gather("gather of 2**24 rows of 128 bytes", 1 << 25, 64, 1 << 24, height=64, goal=0.5),
    scatter_add(1 << 25, 32, 1 << 24),
    gemv(8192, 8192, height=1), gemv(128256, 4096),
    cast(MANY), strided(16384, 8192, 16384), concatenate(16384, 4096),
    softmax(1024, 8, many=100), rms_norm(1024, 8, many=100), small_sum(8, 1024, 100), *RAGGED, *MANY_ROWS,
)  # fmt: skip
