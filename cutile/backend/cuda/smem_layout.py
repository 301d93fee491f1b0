"""Operands of `wgmma` in shared memory: swizzled panels, and their descriptors.

TMA writes a tile as panels one after the other. A panel is as wide as the swizzle (128, 64 or 32 bytes) along the axis
that is contiguous in memory, and as long as the tile along the other. The 16-byte pieces of a row are permuted by the
row's number, so that eight neighbouring rows use no bank twice. `wgmma` reads panels directly, along either axis (PTX
ISA, "Shared Memory Matrix Layout").
"""

from dataclasses import dataclass
from typing import Literal

from cutile.backend.cuda.tensor_map import MAX_TMA_BOX, Swizzle

WARPGROUP = 128
"""Threads of a warpgroup."""
WGMMA_ROWS = 64
"""Rows of one instruction's left operand and result."""
STEP_BYTES = 32
"""Bytes along K that one instruction takes."""
PIECE_BYTES = 16
"""Bytes that a swizzle permutes together; the unit of addresses and strides in descriptors."""
ALIGNMENT = 1024
"""A tile in panels begins at a multiple of so many bytes: eight rows of the widest swizzle."""

Split = Literal["none", "panels", "rows"]
"""How the blocks of a cluster divide a tile that all of them need."""

_MODES: dict[Swizzle, int] = {128: 1, 64: 2, 32: 3}
"""The swizzle in a descriptor's bits 62 and 63."""


@dataclass(frozen=True)
class SmemLayout:
    """A tile in panels.

    Attributes:
        width: elements along the axis that is contiguous in memory.
        length: elements along the other axis.
        size: bytes of an element.
        k_major: whether the contiguous axis is the product's K.
        interleaved: whether the even rows lie ahead of the odd ones. The columns of a product's sums then stand for
            rows in that order: a thread has two of each 8 columns, and with them four neighbours of each 16 rows.

    Example:
        >>> layout = SmemLayout(width=256, length=64, size=2, k_major=False)
        >>> layout.swizzle, layout.span, layout.count, layout.nbytes
        (128, 64, 4, 32768)
    """

    width: int
    length: int
    size: int
    k_major: bool
    interleaved: bool = False

    @property
    def plain(self) -> tuple[int, int, int, bool, bool]:
        """The fields as plain data, which IR prints and parses."""
        return (self.width, self.length, self.size, self.k_major, self.interleaved)

    def row_at(self, place: int) -> int:
        """The row that lies at a place, counted in rows.

        Example:
            >>> layout = SmemLayout(width=64, length=48, size=1, k_major=True, interleaved=True)
            >>> [layout.row_at(place) for place in (0, 1, 23, 24, 25, 47)]
            [0, 2, 46, 1, 3, 47]
        """
        odd, pair = divmod(place, (self.length + 1) // 2)
        return 2 * pair + odd if self.interleaved else place

    @property
    def swizzle(self) -> Swizzle:
        """Bytes of a panel's row; 0 for a tile of a single row, which has no swizzle.

        Neighbours in a row lie in different banks anyway.
        """
        widest: Swizzle | None = next((width for width in _MODES if self.width * self.size % width == 0), None)
        if widest is None:
            raise ValueError(f"rows of {self.width * self.size} bytes are no whole number of swizzled pieces")
        return 0 if self.k_major and self.length == 1 and self.width <= MAX_TMA_BOX else widest

    @property
    def span(self) -> int:
        """Elements of a panel along the contiguous axis."""
        return self.swizzle // self.size or self.width

    @property
    def count(self) -> int:
        """The number of panels."""
        return self.width // self.span

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.length * self.span * self.size

    @property
    def nbytes(self) -> int:
        """Bytes that TMA copies."""
        return self.count * self.panel_bytes

    @property
    def place_bytes(self) -> int:
        """Bytes of shared memory that the tile takes, with the gap behind it."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT

    def offset(self, mn: int, k: int) -> int:
        """Bytes from the tile's start to row (or column) `mn` and depth `k` of a product."""
        along, across = (k, mn) if self.k_major else (mn, k)
        panel, rest = divmod(along, self.span)
        if rest * self.size % PIECE_BYTES:
            raise ValueError(f"a part begins at a piece of {PIECE_BYTES} bytes, not {rest} elements into a panel")
        return panel * self.panel_bytes + across * self.swizzle + rest * self.size

    @property
    def descriptor(self) -> int:
        """A part's descriptor without its address.

        Strides between groups of 8 rows and between panels, and the swizzle.
        """
        # Both strides count in units of 16 bytes (PTX ISA, "Matrix Descriptor Format").
        rows = 8 * self.swizzle >> 4
        # From panel to panel. An instruction reads one panel of an operand along K: the field then means nothing.
        panels = 1 if self.k_major else self.panel_bytes >> 4
        return panels << 16 | rows << 32 | _MODES[self.swizzle] << 62

    def split(self, blocks: int) -> Split | None:
        """How blocks that share the tile divide the loading of it.

        By panels, else by rows; None where neither divides evenly.
        """
        if blocks == 1:
            return "none"
        if self.count % blocks == 0:
            return "panels"
        return "rows" if self.length % (8 * blocks) == 0 else None

    def part(self, blocks: int) -> tuple[int, int, int]:
        """One block's part: its panels, their rows, and the bytes from part to part."""
        if self.split(blocks) == "panels":
            return self.count // blocks, self.length, self.nbytes // blocks
        return self.count, self.length // blocks, self.panel_bytes // blocks


def smem_layout_fits(width: int, length: int, size: int) -> bool:
    """Whether a tile lies in whole panels, each of which one copy can load."""
    # Bytes of the narrowest swizzle; rows of a group, which the swizzle repeats; elements of the longest box of TMA.
    return width * size % 32 == 0 and length % 8 == 0 and 0 < length <= 256


@dataclass(frozen=True)
class BufferStages:
    """The stages of a buffer in shared memory.

    Attributes:
        smem_layout: the layout of a tile in a stage.
        stages: the number of stages.
        stage_bytes: bytes from stage to stage.
        place: the first byte of the first stage.
    """

    smem_layout: SmemLayout
    stages: int
    stage_bytes: int
    place: int
