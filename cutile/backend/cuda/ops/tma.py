"""Specialised warps: what the copy engine loads and stores."""

from __future__ import annotations

from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import A_BUFFER, A_PIPELINE, PLACE
from cutile.dtypes import i32
from cutile.ir.core import ANY_TENSOR, ANY_TILE, SCALAR_INT, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import TileType, Type


class TmaPrefetch(Op, name="cuda.tma_prefetch", effect=Effect.WRITE):
    """Prefetch a tensor's descriptor for TMA, ahead of the first copy."""

    intrinsic = Intrinsic("tma.prefetch", call=("map",))
    x: Value = operand(ANY_TENSOR)
    map: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaLoad(Op, name="cuda.tma_load", effect=Effect.WRITE):
    """Begin to load the tile at a tile index into a stage of a buffer.

    Zeros past the edges. It arrives on `full`.

    The tile lies there as panels one after the other, each as wide as the swizzle along the contiguous `axis`, and
    one copy loads one panel. Where `cluster` blocks share the tile, each loads its part for all of them: some of the
    panels, or of each panel's rows, as `split` says. `steps` lead from tile to tile where these do not lie
    side by side. `shape` is the tile's, where the buffer was reserved for tiles of another shape that lie there alike.
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
    transposed: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class TmaStore(Op, name="cuda.tma_store", effect=Effect.WRITE):
    """Write a tile at a tile index through shared memory.

    What lies past the edges is dropped.

    Each warp writes its own rows, `span` columns at a time, into `buffers` places of `through` in turn, and has the
    copy engine store them; it waits only before it writes to a place again. Of a tile that is `packed`, the value is
    words of two elements each. A buffer that it goes through is that of left operands, whose stages nothing is loaded
    to any more: there a place is the group's own part of one, and `warp_bytes` lead from warp to warp. Where it may be
    `dropped`, a tile whose first index is below zero is not stored. `shape` is the tile's in the tensor, where the
    value's rows are several axes there. A `transposed` value has its columns where others have rows: a warp has 16 of
    them stored, `span` rows at a time.
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
    """Wait until the copy engine has read all that is to be stored.

    Shared memory outlives that.
    """

    intrinsic = Intrinsic("tma.store_wait")

    def infer(self) -> tuple[Type, ...]:
        return ()


class PackPairs(Op, name="cuda.pack_pairs", effect=Effect.WRITE):
    """A tile of 16-bit elements, two to a word, in registers of their own.

    A result that is put off (`pipeline/delayed_epilogue.py`).
    """

    intrinsic = Intrinsic("tma.pack_pairs", facts=("dtype", "count"), stem="pack")
    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (TileType(i32, (rows, columns // 2)),)
