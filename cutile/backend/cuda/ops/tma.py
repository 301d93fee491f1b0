"""Tiles that the tensor memory accelerator (TMA) loads and stores."""

from __future__ import annotations

from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import A_BUFFER, A_PIPELINE, PLACE
from cutile.dtypes import i32
from cutile.ir.core import ANY_TENSOR, ANY_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type


class TmaPrefetch(Op, name="cuda.tma_prefetch", effect=Effect.WRITE):
    """Bring a tensor's descriptor into TMA's cache, ahead of the first copy."""

    intrinsic = Intrinsic("tma.prefetch", call=("map",))
    x: Value = operand(ANY_TENSOR)
    map: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaLoad(Op, name="cuda.tma_load", effect=Effect.WRITE):
    """Begin to load the tile at a tile index into a stage of a buffer.

    Zeros past the edges. Its bytes arrive on the stage's barrier `full`. The tile lies there as panels one after the
    other, each as wide as the swizzle along the contiguous `axis`; one copy loads one panel.

    Attributes:
        map: the parameter that has the tensor's descriptor.
        axis: the contiguous one.
        cluster: blocks that share the tile: each loads its part for all, some of the panels or some of each panel's
            rows.
        steps: elements from tile to tile along each axis, if tiles do not lie side by side.
        shape: the tile's, if the buffer was reserved for tiles of another shape that lie there alike.
    """

    x: Value = operand(ANY_TENSOR)
    buffer: Value = operand(A_BUFFER)
    pipeline: Value = operand(A_PIPELINE)
    counter: Value = operand(SCALAR_INT)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    map: str = attribute()
    axis: int = attribute()
    cluster: int = attribute(default=1)
    steps: tuple[int, ...] = attribute(default=())
    shape: tuple[int, ...] = attribute(default=())

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaStore(Op, name="cuda.tma_store", effect=Effect.WRITE):
    """Write a tile at a tile index through shared memory.

    Elements past the edges are dropped. Each warp writes its own rows to shared memory, `span` columns at a time, to
    `buffers` places of `through` in turn, and TMA stores them. It waits only before it writes to a place again.

    Attributes:
        map: the parameter that has the tensor's descriptor.
        packed: the value is words of two elements each.
        warp_bytes: bytes from warp to warp, if `through` is the buffer of left operands, into which nothing is loaded
            any
            more: a place is then the warpgroup's own part of a stage.
        dropped: a tile whose first index is below zero is not stored.
        shape: the tile's in the tensor, if the value's rows are several axes there.
        transposed: a warp has 16 columns, of which `span` rows at a time are stored.
    """

    x: Value = operand(ANY_TENSOR)
    value: Value = operand(ANY_TILE)
    through: Value = operand(PLACE)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    map: str = attribute()
    packed: bool = attribute(default=False)
    warp_bytes: int = attribute(default=0)
    dropped: bool = attribute(default=False)
    shape: tuple[int, ...] = attribute(default=())
    transposed: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaStoreWait(Op, name="cuda.tma_store_wait", effect=Effect.WRITE):
    """Wait until TMA has read all that it is to store.

    Shared memory must live until then.
    """

    intrinsic = Intrinsic("tma.store_wait")

    def infer(self) -> tuple[Type, ...]:
        return ()


class PackPairs(Op, name="cuda.pack_pairs", effect=Effect.WRITE):
    """A tile of 16-bit elements, two to a word, in registers of its own.

    For a result whose store is delayed (`pipeline/epilogue.py`).
    """

    intrinsic = Intrinsic("tma.pack_pairs", facts=("dtype", "count"), stem="pack")
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (TileType(i32, (rows, columns // 2)),)
