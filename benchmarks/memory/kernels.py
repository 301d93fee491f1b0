# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# (a Tensor is another in a kernel)
"""The kernels of `benchmarks.memory`, as a user would write them: public names, no options."""

from __future__ import annotations

import operator

import cutile as ct
from cutile import Const, Mut, SharedMut, Tensor, f32, i32, u32

LOWEST = -3.0e38
"""Lower than any finite logit, and finite itself, so that differences with it are no NaN."""

# -- rows -----------------------------------------------------------------------------------------


@ct.entry
def softmax(y: Mut, x: Tensor):
    """Softmax of whole rows."""
    t = ct.load_tile_like(x, y).astype(f32)
    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])
    y.store((e / ct.reduce_sum(e, 1)[:, None]).astype(y.dtype))


@ct.entry
def padded_softmax(y: Mut, x: Tensor):
    """Softmax of rows that are shorter than a tile."""
    t = ct.load_tile_like(x, y, padding=ct.padding.NEG_INF).astype(f32)
    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])
    y.store((e / ct.reduce_sum(e, 1)[:, None]).astype(y.dtype))


@ct.entry
def softmax_backward(dx: Mut, y: Tensor, dy: Tensor):
    """The gradient of a softmax: y * (dy - sum(y * dy))."""
    t, d = ct.load_tile_like(y, dx).astype(f32), ct.load_tile_like(dy, dx).astype(f32)
    dx.store((t * (d - ct.reduce_sum(t * d, 1)[:, None])).astype(dx.dtype))


@ct.entry
def layer_norm(y: Mut, x: Tensor, w: Tensor, b: Tensor, eps: f32):
    """Rows with mean 0 and variance 1, times w, plus b."""
    n = y.shape[1]
    t = ct.load_tile_like(x, y).astype(f32)
    t = t - (ct.reduce_sum(t, 1) / n)[:, None]
    scale = ct.rsqrt(ct.reduce_sum(t * t, 1) / n + eps)[:, None]
    weights, bias = ct.load_tile(w, (n,), (0,)).astype(f32), ct.load_tile(b, (n,), (0,)).astype(f32)
    y.store((t * scale * weights[None, :] + bias[None, :]).astype(y.dtype))


@ct.entry
def layer_norm_by_sums(y: Mut, x: Tensor, w: Tensor, b: Tensor, eps: f32):
    """Layer norm in two passes: the row's sum and its sum of squares, in f32, then two multiply-adds an element.

    The variance is a difference of two sums: it loses digits where the mean is large beside the deviation. Of rows of
    16384 f32 on the CPU, deviation 1, results are off by 8e-8, 1e-5, 6e-4 and 3e-2 for means of 0, 10, 100 and 1000.
    """
    n, shape = y.shape[1], y.shape
    t = ct.load_tile_like(x, y).astype(f32)
    mean = ct.reduce_sum(t, 1) / n
    variance = ct.max_tile(ct.reduce_sum(t * t, 1) / n - mean * mean, ct.constant(0, (shape[0],), f32))
    scale = ct.rsqrt(variance + eps)
    weights, bias = ct.load_tile(w, (n,), (0,)).astype(f32), ct.load_tile(b, (n,), (0,)).astype(f32)
    t = ct.fma(t, ct.broadcast(scale[:, None], shape), ct.broadcast((-mean * scale)[:, None], shape))
    y.store(ct.fma(t, ct.broadcast(weights[None, :], shape), ct.broadcast(bias[None, :], shape)).astype(y.dtype))


@ct.entry
def rms_norm(y: Mut, x: Tensor, w: Tensor, eps: f32):
    """Rows of root mean square 1, times w."""
    n = y.shape[1]
    t = ct.load_tile_like(x, y).astype(f32)
    scale = ct.rsqrt(ct.reduce_sum(t * t, 1) / n + eps)[:, None]
    y.store((t * scale * ct.load_tile(w, (n,), (0,)).astype(f32)[None, :]).astype(y.dtype))


@ct.entry
def padded_rms_norm(y: Mut, x: Tensor, w: Tensor, eps: f32):
    """RMS norm of rows that are shorter than a tile."""
    t = ct.load_tile_like(x, y).astype(f32)
    scale = ct.rsqrt(ct.reduce_sum(t * t, 1) / x.shape[1] + eps)[:, None]
    y.store((t * scale * ct.load_tile(w, (y.shape[1],), (0,)).astype(f32)[None, :]).astype(y.dtype))


@ct.entry
def cross_entropy(loss: Mut, x: Tensor, target: Tensor, *, B: Const = 8192, T: Const = 256):
    """log(sum(exp(row))) minus the target's logit, in pieces of a row, with T running sums that are joined last."""
    row = ct.get_tile_block_id()[0]
    part = x.partition((1, B), padding=ct.padding.NEG_INF)
    top, total = ct.constant(LOWEST, (T,), f32), ct.constant(0, (T,), f32)
    for k in range(ct.num_tiles(part, 1)):
        t = part.load((row, k)).reshape((B // T // 8, T, 8)).astype(f32)
        higher = ct.max_tile(top, ct.reduce_max(t, (0, 2)))
        total = total * ct.exp(top - higher) + ct.reduce_sum(ct.exp(t - higher[None, :, None]), (0, 2))
        top = higher
    most = ct.reduce_max(top, 0)
    total = ct.reduce_sum(total * ct.exp(top - most), 0)
    picked = ct.gather(x, (row, ct.load_tile_like(target, loss))).astype(f32)
    loss.store((ct.log(total) + most) - picked)


@ct.entry
def cross_entropy_backward(dx: Mut, x: Tensor, target: Tensor, log_sum: Tensor, g: Tensor):
    """(exp(x - log_sum) - 1 at the target) * g, in pieces of a row."""
    row, piece, _ = ct.get_tile_block_id()
    n = dx.shape[1]
    p = ct.exp(ct.load_tile_like(x, dx).astype(f32) - ct.load_tile(log_sum, (1,), (row,))[:, None])
    place = ct.iota((n,))[None, :] + n * piece
    p = ct.select(place == ct.load_tile(target, (1,), (row,))[:, None], p - 1.0, p)
    dx.store((p * ct.load_tile(g, (1,), (row,))[:, None]).astype(dx.dtype))


@ct.entry
def cumsum(y: Mut, x: Tensor):
    """Running sums of whole rows."""
    y.store(ct.scan_sum(ct.load_tile_like(x, y), 1))


@ct.entry
def long_cumsum(y: Mut, x: Tensor, *, B: Const = 4096):
    """Running sums of a row, in pieces."""
    row = ct.get_tile_block_id()[0]
    part, out = x.partition((1, B)), y.partition_mut((1, B))
    before = ct.constant(0, (1, 1), x.dtype)
    for k in range(ct.num_tiles(part, 1)):
        t = part.load((row, k))
        out.store(ct.scan_sum(t, 1) + before, (0, k))
        before = before + ct.reduce_sum(t, 1)[:, None]


@ct.entry
def compacted(y: Mut, counts: Mut, x: Tensor, limit: f32, state: SharedMut):
    """Compaction: the elements above a limit, side by side, as in docs/recipes/scans.md."""
    t = ct.load_tile_like(x, y)
    above = (t > limit) & y.inside()
    places = ct.cumsum(above.astype(i32), 0)
    total = ct.reduce_sum(above.astype(i32), 0)
    before = ct.scan_blocks(state, total, 0, operator.add)
    ct.scatter(y, before + places - 1, t, mask=above)
    counts.store((before + total).reshape((1,)))


# -- reductions -----------------------------------------------------------------------------------


@ct.entry
def partial_sums(y: Mut, x: Tensor, *, B: Const = 8192):
    """The sums of pieces of x, which the tile blocks take in a fixed stride; one result for each tile block."""
    part = x.partition((B,))
    total = ct.constant(0, (B,), f32)
    for k in range(ct.get_tile_block_id()[0], ct.num_tiles(part, 0), ct.get_num_tile_blocks()[0]):
        total = total + part.load(k).astype(f32)
    y.store(ct.reduce_sum(total, 0).reshape((1,)))


@ct.entry
def piece_sums(y: Mut, x: Tensor, *, B: Const = 8192):
    """The sum of each piece of x."""
    t = ct.load_tile(x, (B,), (ct.get_tile_block_id()[0],))
    y.store(ct.reduce_sum(t, 0).reshape((1,)))


@ct.entry
def column_sums(y: Mut, x: Tensor, *, R: Const = 16):
    """The sums of columns over some rows; tile block (i, j) takes rows in a fixed stride."""
    i, j, _ = ct.get_tile_block_id()
    part = x.partition((R, y.shape[1]))
    total = ct.constant(0, (R, y.shape[1]), f32)
    for k in range(i, ct.num_tiles(part, 0), ct.get_num_tile_blocks()[0]):
        total = total + part.load((k, j)).astype(f32)
    y.store(ct.reduce_sum(total, 0)[None, :])


@ct.entry
def gemv(y: Mut, a: Tensor, x: Tensor, *, B: Const = 1024):
    """y = a @ x; a tile block has some rows of a."""
    (rows,) = y.shape
    i = ct.get_tile_block_id()[0]
    part, columns = a.partition((rows, B)), x.partition((B,))
    total = ct.constant(0, (rows, B), f32)
    for k in range(ct.num_tiles(part, 1)):
        total = total + part.load((i, k)).astype(f32) * columns.load(k).astype(f32)[None, :]
    y.store(ct.reduce_sum(total, 1).astype(y.dtype))


@ct.entry
def gemv_rows(y: Mut, a: Tensor, x: Tensor, *, N: Const = 8192):
    """y = a @ x; a tile block has whole rows of a."""
    (rows,) = y.shape
    t = ct.load_tile(a, (rows, N), (ct.get_tile_block_id()[0], 0)).astype(f32)
    y.store(ct.reduce_sum(t * ct.load_tile(x, (N,), (0,)).astype(f32)[None, :], 1).astype(y.dtype))


# -- moves ----------------------------------------------------------------------------------------


@ct.entry
def transpose(y: Mut, x: Tensor):
    """y = x.T"""
    i, j, _ = ct.get_tile_block_id()
    y.store(ct.load_tile(x, (y.shape[1], y.shape[0]), (j, i)).transpose())


@ct.entry
def permute(y: Mut, x: Tensor):
    """y = x with its last two axes exchanged."""
    _, m, n = y.shape
    b, i, j = ct.get_tile_block_id()
    y.store(ct.permute(ct.load_tile(x, (1, n, m), (b, j, i)), (0, 2, 1)))


@ct.entry
def copy(y: Mut, x: Tensor):
    """y = x, converted to y's dtype; strides may differ."""
    y.store(ct.load_tile_like(x, y).astype(y.dtype))


@ct.entry
def add(z: Mut, x: Tensor, y: Tensor):
    """z = x + y."""
    z.store(ct.load_tile_like(x, z) + ct.load_tile_like(y, z))


@ct.entry
def concatenate(y: Mut, a: Tensor, b: Tensor):
    """Rows of a, then of b, side by side; a tile block has whole rows of all three."""
    rows, n = y.shape
    i = ct.get_tile_block_id()[0]
    out = y.partition_mut((rows, n // 2))
    out.store(ct.load_tile(a, (rows, n // 2), (i, 0)), (0, 0))
    out.store(ct.load_tile(b, (rows, n // 2), (i, 0)), (0, 1))


@ct.entry
def rotary(y: Mut, x: Tensor, cos: Tensor, sin: Tensor):
    """Rotary embedding: the halves of each head, rotated by the angles of their token."""
    _, heads, width = y.shape
    half = width // 2
    token, h, _ = ct.get_tile_block_id()
    c = ct.load_tile(cos, (1, half), (token, 0)).astype(f32)[:, None, :]
    s = ct.load_tile(sin, (1, half), (token, 0)).astype(f32)[:, None, :]
    left = ct.load_tile(x, (1, heads, half), (token, h, 0)).astype(f32)
    right = ct.load_tile(x, (1, heads, half), (token, h, 1)).astype(f32)
    out = y.partition_mut((1, heads, half))
    out.store((left * c - right * s).astype(y.dtype), (0, 0, 0))
    out.store((right * c + left * s).astype(y.dtype), (0, 0, 1))


@ct.entry
def dropout(y: Mut, x: Tensor, seed: u32, keep: u32, scale: f32):
    """Dropout: an element stays if its number of Philox 4x32-10 is below `keep`; a counter gives four numbers."""
    quarter = y.shape[0] // 4
    i = ct.get_tile_block_id()[0]
    n0 = (ct.iota((quarter,)) + i * quarter).astype(u32)
    n1 = n2 = n3 = ct.constant(0, (quarter,), u32)
    k0, k1 = seed, seed ^ 0x5BD1E995
    for _ in ct.static_range(10):
        high0, low0 = ct.mulhii(n0, 0xD2511F53), n0 * 0xD2511F53
        high2, low2 = ct.mulhii(n2, 0xCD9E8D57), n2 * 0xCD9E8D57
        n0, n1, n2, n3 = high2 ^ n1 ^ k0, low2, high0 ^ n3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    part, out = x.partition((quarter,)), y.partition_mut((quarter,))
    out.store(ct.select(n0 < keep, part.load(4 * i).astype(f32) * scale, 0.0).astype(y.dtype), 0)
    out.store(ct.select(n1 < keep, part.load(4 * i + 1).astype(f32) * scale, 0.0).astype(y.dtype), 1)
    out.store(ct.select(n2 < keep, part.load(4 * i + 2).astype(f32) * scale, 0.0).astype(y.dtype), 2)
    out.store(ct.select(n3 < keep, part.load(4 * i + 3).astype(f32) * scale, 0.0).astype(y.dtype), 3)


# -- rows by index --------------------------------------------------------------------------------


@ct.entry
def gather_rows(y: Mut, table: Tensor, index: Tensor):
    """y[i] = table[index[i]]"""
    rows, n = y.shape
    chosen = ct.load_tile(index, (rows,), (ct.get_tile_block_id()[0],))
    y.store(ct.gather(table, (chosen[:, None], ct.iota((n,))[None, :])))


@ct.entry
def scatter_add_rows(y: Mut, x: Tensor, index: Tensor, *, R: Const = 32):
    """y[index[i]] += x[i]; tile blocks take tiles of rows in a fixed stride."""
    n = y.shape[1]
    part, rows = x.partition((R, n)), index.partition((R,))
    for k in range(ct.get_tile_block_id()[0], ct.num_tiles(rows, 0), ct.get_num_tile_blocks()[0]):
        ct.atomic_add(y, (rows.load(k)[:, None], ct.iota((n,))[None, :]), part.load((k, 0)))
