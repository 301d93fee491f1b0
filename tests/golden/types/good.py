"""Kernels and launches that strict type checkers pass as they stand. It runs, too."""

from typing import NamedTuple

import numpy as np

import cutile as ct
from cutile import Const, Mut, SharedMut, Tensor, api, f32, i32


@ct.entry
def relu(y: Mut, x: Tensor):
    """The larger of each element and 0."""
    t = ct.load_tile_like(x, y)
    rows, columns = y.shape
    scale = 1.0 / (rows * columns)
    u = max(t, 0.0) * scale + (1 - t) / 2
    v = -u + min(u, t, 3.0) ** 2
    w = abs(v) if rows > 2 else v
    if columns > 8:
        w = w[:, None].reshape((rows, columns))
    m, n = w.shape
    part = x.partition((m, n))
    inside = part.inside((0, 0)) & (w > 0.5) | ~(w <= t)
    y.store(ct.select(inside, w, 0.0).astype(y.dtype))


@ct.entry
def saxpy(y: Mut, a: f32, x: Tensor, *, K: Const = 3):
    b = a * 2.0 + 1
    y.store(b * ct.load_tile_like(x, y) + y.load() - a / K)


@ct.entry
def described(y: Mut, x: Tensor):
    t = ct.load_tile_like(x, y)
    centred = t - ct.mean(t, (0, 1), keepdims=True)
    spread = ct.var(centred) + ct.reduce_sum(ct.cumsum(t, 0), axis=None)
    noise = ct.rand(7, ct.iota((8,), start=1, step=2)[None, :])
    a, b, _, _ = ct.philox(1, ct.iota(8))
    if (t > 0.0).any() and not ct.isnan(t).all():
        t = round(ct.clamp(t, -1.0, 1.0)) @ ct.extract(ct.cat((t, t), 0), (1, 0), (8, 8))
    u = ct.reduce((t, 1.0 + t), 0, (0.0, 0.0), lambda p, q: (p[0] + q[0] * spread, p[1] + q[1]), keepdims=True)
    y.store(t + ct.flip(ct.sigmoid(u[0] + noise), 1) + (a ^ b).astype(ct.f32))


@ct.entry
def windowed(y: Mut, x: Tensor, a: f32 | float = 2.0, n: i32 | int = 3, *, DTYPE: Const[type[ct.DType]] = f32):
    window = x.slice(0, 1, n).partition((8,))
    y.store((a * window.load(0)).astype(DTYPE))


@ct.entry
def histogram(counts: SharedMut, x: Tensor):
    part, (block, _, _) = x.partition((8,)), ct.get_tile_block_id()
    for i in range(block, ct.num_tiles(part, 0), ct.get_num_tile_blocks()[0]):
        ct.atomic_add(counts, part.load(i) % counts.shape[0], 1, mask=part.inside(i))


@ct.entry
def rows(y: SharedMut):
    part = y.partition((1, 8))
    i = ct.get_tile_block_id()[0]
    part.store(2.0 * part.load((i, 0)), (i, 0))


counts = histogram(api.zeros((4,), i32), api.arange(20, i32), grid=3).first().sync()
assert counts.numpy().tolist() == [5, 5, 5, 5]
assert histogram(counts, api.arange(20, i32).sync()).grid((2,)).sync().counts is counts
histogram(counts.mut, np.arange(20, dtype=np.int32), grid=(2, 1, 1)).sync()
assert rows(api.ones((3, 8), f32), grid=3).first().sync().numpy().sum() == 48

x = api.ones((8, 8), f32).sync()
y = api.zeros((8, 8), f32).sync()
described(api.zeros((8, 8), f32).partition((8, 8)), x).sync()
out = saxpy(y.partition((4, 4)), 2.0, x).sync()
z = saxpy(api.zeros((8, 8), f32).partition((4, 4)), 2, np.ones((8, 8), np.float32), K=4).first().unpartition().sync()
assert out.y.unpartition() is y


class Saxpy(NamedTuple):
    """What a launch of `saxpy` yields, for type checkers."""

    y: api.Partition
    a: float
    x: api.Tensor


typed: Saxpy = saxpy(api.zeros((8, 8), f32).partition((4, 4)), 2.0, x).sync()
assert typed.y.unpartition().numpy().shape == typed.x.shape
w = saxpy(y.mut.partition((4, 4)), 2.0, x).generics([3]).sync()
assert z.numpy().shape == w.y.numpy().shape == x.shape


@ct.entry
def weighted(y: Mut, x: Tensor, a: f32, extra: Tensor | None = None):
    t = ct.load_tile_like(x, y) * a
    if extra is not None:
        t = t + ct.load_tile_like(extra, y)
    y.store(t)


weighted(y.mut.partition((4, 4)), x, 2.0).discard()
weighted(y.mut.partition((4, 4)), x, 2.0, None).discard()
weighted(y.mut.partition((4, 4)), x, 2.0, extra=x).discard()
weighted(y.mut.partition((4, 4)), x, 2.0, x).discard()


@ct.entry
def grouped(y: Mut, xs: tuple[Tensor, ...], n: ct.i32):
    t = y.load()
    for x in xs:
        t = t + ct.load_tile_like(x, y)
    for k in range(n):
        t = t + k
    y.store(t)


grouped(y.mut.partition((4, 4)), (x, x), 3).discard()
grouped(api.zeros((8, 8), f32).partition((4, 4)), [x, x], n=3).discard()


@ct.entry(unsafe=True)
def pointed(p: ct.Ptr[f32], n: ct.i32, *, BK: Const):
    lane = ct.iota((8,))
    loaded, _ = ct.load_ptr_tko(p.offset(lane))
    ct.store_ptr_tko(p.offset(lane), loaded + n * BK)


pointed(x.device_pointer(), 4, BK=3).grid(1).discard()
pointed(p=1234, n=4, BK=2).grid(1).discard()


@ct.autotune([{"B": 2}, {"B": 4}], key=("y",))
@ct.entry
def tuned(y: Mut[Tensor[f32, "m"]], x: Tensor[f32, "m"], *, B: Const = 2):
    part = x.partition((B,))
    i = ct.get_tile_block_id()[0]
    y.store(part.load(i) + part.load((i,)))


row = api.zeros((8,), f32).sync()
tuned(row.mut.partition("B"), np.ones(8, np.float32)).sync().y.numpy()


@ct.entry
def filled(y: Mut, z: ct.MappedPartitionMut):
    """A number in place of a tile fills the tile."""
    y.store(1)
    for index in z.iter_indices():
        z.store(2.0, index)
    ct.store_view_tko(y.partition_mut((2,)), 3, 1)
    ct.store_gather_scatter_view_tko(ct.make_gather_scatter_view(y, (1,)), 4.0, (ct.iota((1,)),))
    ct.atomic_red_view_tko(y, 0.5, 0, ct.atomic.ADDF)


numbers = api.zeros((4,), f32).sync()
filled(numbers.mut.partition((4,)), row.mut.partition((4,)).map((1,), 1)).sync()
assert numbers.numpy().tolist() == [4.5, 1.5, 3.5, 3.5]
