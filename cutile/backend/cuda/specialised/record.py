"""A kernel that is lowered to specialised warps: what the rules of `rules.py` found, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.panels import GROUP, ROWS, STEP_BYTES, Panels
from cutile.backend.cuda.specialised.alone import NARROW
from cutile.backend.cuda.specialised.operand import Operand
from cutile.backend.cuda.specialised.split import nearby_bytes
from cutile.backend.interface import TensorMap
from cutile.ir.control import For
from cutile.ir.core import Op
from cutile.ops.matmul import Mma
from cutile.ops.memory import StoreMut

AT_ONCE = 132
"""Tile blocks that are at work at one time: the multiprocessors of an H100 or H200."""
BARRIER_BYTES = 8
WARP_ROWS = 16
"""Rows of a result that one warp holds together."""
REGISTERS = {1: (0, 0), 2: (56, 224), 3: (32, 160)}
REGISTERS_FEW = (40, 232)
"""Registers of a loading and of a computing thread, by groups: 65536 hold them all; 0 leaves the number alone."""


@dataclass(frozen=True)
class Specialised:
    """A kernel that is lowered to specialised warps.

    Attributes:
        loop: the loop of products.
        product: the one product in it.
        left: its left operand.
        right: its right operand.
        groups: warp groups that multiply.
        cluster: blocks that share what they load.
        along: the axis of the grid along which a cluster's blocks are neighbours.
        slots: of the ring.
        accumulator: the layout of the sums.
        store: the store that the copy engine does; None where threads do it themselves.
        buffers: places per warp in which the store's columns wait.
        needed: the scalar operations that the loading warps need.
        asserts: what the kernel asserts, which the loading warps do too.
        promoted: columns whose products are added in f32 together; 0 where the tensor cores add them to the sums.
        limited: whether waits that last too long end the kernel.
        together: turns whose products the tensor cores add up before they are added in f32; 0 for all of them.
        exchanged: whether the operands have changed places (`exchange.py`): `left` is the kernel's right one.
        crosswise: whether the left operand lies across K, and is read by threads (`crosswise.py`).
        whole: why no tile block's turns are divided (`split.py`); empty where they may be.
        by_fma: whether the products are of f32, by fused multiply-adds in place of the tensor cores.
        alone: whether each group has tile blocks of its own (`alone.py`).
        pieces: into which the turns of a tile block may be divided.
        parts: of a tile's columns that the thread blocks of these, which are a cluster, add up (`nearby.py`); 0 where
            they are none.
        trailing: whether a result is written during the next tile block's products (`trailing.py`).
        narrow: whether fewer columns than usual are done with at a time, for want of registers.
        divisible: whether its turns could be divided, where that is asked for.
    """

    loop: For
    product: Mma
    left: Operand
    right: Operand
    groups: int
    cluster: int
    along: int
    slots: int
    accumulator: Layout
    store: StoreMut | None
    buffers: int
    needed: frozenset[Op]
    asserts: frozenset[Op]
    promoted: int = 0
    together: int = 0
    limited: bool = False
    exchanged: bool = False
    crosswise: bool = False
    whole: str = ""
    by_fma: bool = False
    alone: bool = False
    pieces: int = 1
    parts: int = 0
    trailing: bool = False
    narrow: bool = False
    divisible: bool = False

    @property
    def nearby_bytes(self) -> int:
        """What a thread block of a cluster is sent by all of them."""
        return nearby_bytes(self.accumulator, self.parts, self.pieces) if self.parts else 0

    @property
    def readers(self) -> int:
        """Who says that a slot has been read: each group; each warp, where warps read by themselves; one, if alone."""
        return 1 if self.alone else self.groups * (4 if self.crosswise or self.by_fma else 1)

    @property
    def steps(self) -> int:
        """Instructions that go through the depth of a turn."""
        tile = self.product.a.tile
        return tile.shape[1] * tile.dtype.bits // 8 // STEP_BYTES

    @property
    def piece(self) -> int:
        """Columns that each thread has some of: what follows the loop is done for so many at a time."""
        columns = self.product.acc.tile.shape[1]
        if self.by_fma:
            return self.accumulator.core[1]
        return self.span if columns % 16 == 0 else columns

    @property
    def span(self) -> int:
        """Columns that the copy engine stores at a time."""
        return Panels(NARROW if self.narrow else self.product.acc.tile.shape[1], 1, 2, k_major=False).span

    @property
    def ends_in_ring(self) -> bool:
        """Whether the last result goes by way of the ring's slots: into what each group alone has read of them."""
        piece = WARP_ROWS * Panels(self.product.acc.tile.shape[1], 1, 2, k_major=False).swizzle
        return self.trailing and self.left.panels.offset(ROWS, 0) == 4 * piece and self.slots > self.buffers

    @property
    def store_panels(self) -> Panels:
        """What one warp stores at a time, as a tile in panels: some columns of its rows of the result."""
        return Panels(self.span, WARP_ROWS, 2, k_major=False)

    @property
    def store_map(self) -> TensorMap:
        """How the copy engine stores that."""
        panels = self.store_panels
        return TensorMap((WARP_ROWS, panels.span), panels.swizzle, (0, 1))

    @property
    def more_barriers(self) -> int:
        """Barriers behind the ring's, by which groups with tile blocks of their own take turns; or one, on which the
        sums of a cluster's pieces arrive."""
        return self.groups if self.alone else int(self.parts > 0)

    @property
    def grouped(self) -> int:
        """Rows of tile blocks, or of clusters of them, that are gone through together: those at work cover a square of
        the result, so that they read as little as may be."""
        rows, columns = self.product.acc.tile.shape
        together = self.cluster if self.along == 0 else 1
        return max(1, round(math.sqrt(AT_ONCE * columns / rows) / together))

    @property
    def slot_bytes(self) -> int:
        """From slot to slot."""
        return self.left.panels.place_bytes + self.right.panels.place_bytes

    @property
    def registers(self) -> tuple[int, int]:
        """Of a loading and of a computing thread; 0 leaves the number alone."""
        read_twice = self.crosswise and self.together and self.groups == 2
        return REGISTERS_FEW if self.alone or read_twice else REGISTERS[self.groups]

    @property
    def threads(self) -> int:
        """Of a block."""
        return GROUP * (self.groups + 1)
