"""The kernels of the documents' examples, in Python."""

import cutile as ct
from cutile import Const, Mut, Tensor, f32


@ct.entry
def saxpy(y: Mut, a: f32, x: Tensor):
    """y = a * x + y."""
    y.store(a * ct.load_tile_like(x, y) + y.load())


@ct.entry
def saxpy_scalar_first(a: f32, x: Tensor, y: Mut):
    """y = a * x + y, with the parameters in the older document's order."""
    y.store(a * ct.load_tile_like(x, y) + y.load())


@ct.entry
def add(z: Mut, x: Tensor, y: Tensor):
    """z = x + y."""
    z.store(ct.load_tile_like(x, z) + ct.load_tile_like(y, z))


@ct.entry
def scale(y: Mut, a: f32, x: Tensor):
    """y = a * x."""
    y.store(a * ct.load_tile_like(x, y))


@ct.entry
def increment(y: Mut):
    """y = y + 1."""
    y.store(y.load() + 1)


@ct.entry
def relu(y: Mut):
    """y = max(y, 0)."""
    y.store(ct.max_tile(y.load(), 0))


@ct.entry
def gemm(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 8):
    """z = x @ y."""
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
