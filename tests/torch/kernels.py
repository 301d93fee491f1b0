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
def checked(y: Mut, x: Tensor):
    """y = x, which must be positive."""
    t = ct.load_tile_like(x, y)
    assert ct.reduce_min(t, 0) > 0.0, "x must be positive"
    y.store(t)
