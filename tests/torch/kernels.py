"""The kernels that these tests launch over PyTorch's tensors. Needs no PyTorch."""

import cutile as ct
from cutile import Mut, Tensor, f32, i32


@ct.entry
def silu(y: Mut, x: Tensor):
    """y = x * sigmoid(x)."""
    t = ct.load_tile_like(x, y)
    y.store(t / (1.0 + ct.exp(-t)))


@ct.entry
def silu_backward(dx: Mut, dy: Tensor, x: Tensor):
    """dx = dy * (the derivative of silu at x)."""
    t = ct.load_tile_like(x, dx)
    s = 1.0 / (1.0 + ct.exp(-t))
    dx.store(ct.load_tile_like(dy, dx) * s * (1.0 + t * (1.0 - s)))


@ct.entry
def axpy(y: Mut, a: f32, x: Tensor):
    """y = a * x + y."""
    y.store(a * ct.load_tile_like(x, y) + y.load())


@ct.entry
def scaled(y: Mut, n: i32, x: Tensor, *, FACTOR: ct.Const = 2):
    """y = FACTOR * n * x."""
    y.store(ct.load_tile_like(x, y) * ct.convert_scalar(n * FACTOR, f32))


@ct.entry
def softmax(y: Mut, x: Tensor):
    """The softmax of each row; a tile has whole rows."""
    t = ct.load_tile_like(x, y)
    e = ct.exp(t - ct.reduce_max(t, 1).reshape((t.shape[0], 1)))
    y.store(e / ct.reduce_sum(e, 1).reshape((t.shape[0], 1)))


@ct.entry
def softmax_backward(dx: Mut, dy: Tensor, y: Tensor):
    """dx = y * (dy - the sum of y * dy over the row)."""
    p, g = ct.load_tile_like(y, dx), ct.load_tile_like(dy, dx)
    dx.store(p * (g - ct.reduce_sum(p * g, 1).reshape((p.shape[0], 1))))


@ct.entry
def matmul(z: Mut, x: Tensor, y: Tensor, *, BK: ct.Const = 32):
    """z = x @ y, accumulated in float32."""
    bm, bn = z.shape
    px, py = x.partition((bm, BK)), y.partition((BK, bn))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (bm, bn), f32)
    for k in range(ct.num_tiles(px, 1)):
        acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def checked(y: Mut, x: Tensor):
    """y = x, which must be positive."""
    t = ct.load_tile_like(x, y)
    assert ct.reduce_min(t, 0) > 0.0, "x must be positive"
    y.store(t)
