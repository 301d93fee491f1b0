"""An operand that TMA loads to shared memory: its load, and its layout there."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.smem_layout import SmemLayout, smem_layout_fits
from cutile.backend.cuda.target import Lack, Refused, require
from cutile.backend.cuda.tensor_map import MAX_TMA_AXES, TensorMap
from cutile.backend.cuda.wgmma_instructions import padded_columns
from cutile.backend.gpu.op_facts import constant_of, rounds_to_tf32, source_of
from cutile.ir import For, Op, TensorType, Value
from cutile.ops.cast import Convert
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Extract, Permute, Reshape
from cutile.ops.view import LoadView


@dataclass(frozen=True)
class Operand:
    """One operand of a product, or a tile for threads.

    Attributes:
        load: its load.
        smem_layout: its layout in shared memory.
        axis: the axis of the matrix that is contiguous in memory: 0 or 1.
        passed: the operations between the load and the product, none of which needs an instruction. A transposition
            and a part of the depth are other ways to read the stage. TMA does the conversion from f32 to tf32. A
            reshape makes one axis, the matrix's rows, of all axes but the last.
        rounded: whether TMA rounds f32 to tf32.
        shared: the number of blocks of a cluster that need the same tile, and load a part each.
        first: the depth at which the product begins, where it takes a part of the tile.
        beside: of a tile that threads combine with a product's sums: that product, with whose operands the tile
            arrives. None for operands and for all other tiles.
    """

    load: LoadTile | LoadView
    smem_layout: SmemLayout
    axis: int
    passed: tuple[Op, ...] = ()
    rounded: bool = False
    shared: int = 1
    first: int = 0
    beside: Op | None = None

    @property
    def lead(self) -> int:
        """Axes of the load's tile ahead of the matrix's two; -1 for a tile of one axis."""
        return len(self.load.shape) - 2

    @property
    def index(self) -> tuple[Value, ...]:
        """The tile's index, one number for each axis."""
        return self.load.index if isinstance(self.load, LoadTile) else self.load.starts

    @property
    def place(self) -> tuple[Value, ...]:
        """The index of a single number along the contiguous axis; empty for a tile.

        The stage is wider than the load's shape: the number's neighbours come with it.
        """
        contiguous = self.lead + self.axis
        return self.index[contiguous:][: self.smem_layout.width > self.load.shape[contiguous]]

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements from tile to tile along each axis; empty where tiles lie side by side."""
        return () if isinstance(self.load, LoadTile) or self.load.is_plain else self.load.steps

    @property
    def merged(self) -> int:
        """The product of the extents ahead of the matrix's two axes."""
        return math.prod(self.load.shape[: max(self.lead, 0)])

    @property
    def map(self) -> TensorMap:
        """The tensor map by which TMA loads it."""
        _, rows, _ = self.smem_layout.part(self.shared)
        contiguous, box = self.lead + self.axis, list(self.load.shape)
        box[contiguous] = self.smem_layout.span
        if self.lead >= 0:
            box[self.lead + 1 - self.axis] = rows // self.merged
        order = (*(axis for axis in range(len(box)) if axis != contiguous), contiguous)
        return TensorMap(tuple(box), self.smem_layout.swizzle, order, self.rounded, 1 + self.smem_layout.interleaved)


def loads_of(operands: Iterable[Operand]) -> set[Op]:
    """The loads of operands."""
    loads: list[Op] = [operand.load for operand in operands]
    return set(loads)


def operand_of(value: Value, k_axis: int, kernel: Kernel, loop: For | None = None) -> Operand:
    """The operand that a product's value is loaded as.

    Args:
        value: the left or the right value of the product.
        k_axis: the value's axis along K: 1 of the left one, 0 of the right one.
        kernel: the kernel with the product.
        loop: a main loop, in which the value must be loaded, for its product alone; None for any loops.

    Raises:
        Refused: TMA cannot bring it.
    """
    # After a swap of A and B, reasons still name the operands as the author wrote them.
    swapped = loop is not None and kernel.transposes(loop)
    side = "left" if (k_axis == 1) != swapped else "right"
    definitions, users = kernel.definitions, kernel.users
    require(loop is None or len(users[value]) == 1, f"the {side} operand is used twice", Lack.ONE_USE)
    load, passed = source_of(value, definitions, reads_as_it_lies)
    for op in passed:
        done = op.name + ("d" if op.name.endswith("e") else "ed")
        require(loop is None or len(users[op.operands[0]]) == 1, f"the {side} operand is used before it is {done}")
    along = k_axis if sum(isinstance(op, Permute) for op in passed) % 2 == 0 else 1 - k_axis
    first = _first_depth(passed, k_axis, definitions)
    require(loop is None or not any(isinstance(op, Extract) for op in passed), f"a part of the {side} operand is taken")
    if isinstance(load, Reshape):
        raise Refused(f"the {side} operand is reshaped by more than making rows of the axes ahead of its last")
    if not isinstance(load, LoadTile | LoadView) or (loop is not None and load not in loop.body.operations):
        raise Refused(f"the {side} operand is not loaded in the loop", Lack.LOADS_IN_LOOP)
    tensor, lead = require_tma(load, kernel, f"the {side} operand"), len(load.shape) - 2
    assert tensor.unit_axis is not None
    axis = tensor.unit_axis - lead
    width, length = load.shape[lead + axis], load.shape[lead + 1 - axis]
    merged = math.prod(load.shape[:lead])
    require(merged == 1 or axis == 1, f"rows of several axes of the {side} operand's tensor lie across its last one")
    length *= merged
    if k_axis == 0 and axis == along:  # its length is the product's columns
        length = padded_columns(length)
    size = tensor.dtype.bits // 8
    fits = smem_layout_fits(width, length, size)
    require(fits, f"the {side} operand's tile {load.shape} does not lie in whole panels")
    rounded = any(isinstance(op, Convert) for op in passed)
    return Operand(load, SmemLayout(width, length, size, axis == along), axis, tuple(passed), rounded, first=first)


def _first_depth(passed: Iterable[Op], k_axis: int, definitions: Mapping[Value, Op]) -> int:
    """The depth at which the part of a tile that a product takes begins.

    Raises:
        Refused: the part is not known when the kernel is compiled, or is not one of the tile's depth.
    """
    first, axis = 0, k_axis
    for op in passed:
        if isinstance(op, Permute):
            axis = op.axes[axis]
        elif isinstance(op, Extract):
            at, parts = constant_of(op.index[axis], definitions), op.x.tile.shape[axis] // op.shape[axis]
            if at is None or op.x.tile.shape[1 - axis] != op.shape[1 - axis] or not 0 <= at < parts:
                raise Refused("what is taken of an operand's tile is no part of its depth by a constant")
            first += int(at) * op.shape[axis]
    return first


def require_tma(load: LoadTile | LoadView, kernel: Kernel, whose: str) -> TensorType:
    """The tensor of a load, if TMA can carry the load out.

    Raises:
        Refused: TMA cannot load it.
    """
    if isinstance(load, LoadView):
        require(not load.limited, f"{whose}'s tensor ends where a number says")
        require(load.padding in ("none", "zero"), f"{whose}'s padding is not zero")
    require(load.bulk, f"{whose}'s load keeps off TMA: it says ct.tma.DISABLED", Lack.BULK_LOADS)
    tensor = load.x.type
    if not isinstance(tensor, TensorType):
        raise Refused(f"{whose} is a tensor that this launch writes", Lack.READ_ONLY)
    require(load.x not in kernel.definitions, f"{whose}'s tensor is no argument, but made in the kernel")
    contiguous = tensor.unit_axis is not None and tensor.unit_axis >= len(load.shape) - 2
    require(contiguous, f"no axis of {whose}'s tensor is known to be contiguous", Lack.CONTIGUOUS_AXIS)
    require(len(load.shape) <= MAX_TMA_AXES, f"{whose}'s tensor has more than {MAX_TMA_AXES} axes")
    why = f"rows of {whose}'s tensor do not begin at multiples of 16 bytes, each at one of its own"
    require(tensor.alignment == 16, why, Lack.ALIGNED_ROWS)
    return tensor


def reads_as_it_lies(op: Op) -> bool:
    """Whether an operation is only another way to read a tile that TMA loads.

    A reshape is another way if it makes one axis of all axes but the last: a matrix's rows. A vector is no matrix in
    memory.
    """
    if isinstance(op, Reshape):
        return len(op.shape) == 2 <= len(op.x.tile.shape) and op.shape[1] == op.x.tile.shape[-1]
    transposes, extracts = isinstance(op, Permute) and len(op.axes) == 2, isinstance(op, Extract) and len(op.shape) == 2
    return transposes or extracts or rounds_to_tf32(op)


def is_loaded(value: Value, definitions: Mapping[Value, Op]) -> bool:
    """Whether a tile is loaded, and read as it lies."""
    return isinstance(source_of(value, definitions, reads_as_it_lies)[0], LoadTile | LoadView)


def lies_across(value: Value, k_axis: int, definitions: Mapping[Value, Op]) -> bool:
    """Whether an operand's tensor is contiguous along another axis than K."""
    load, passed = source_of(value, definitions, reads_as_it_lies)
    k_axis = (k_axis + sum(isinstance(op, Permute) for op in passed)) % 2
    if not isinstance(load, LoadTile | LoadView) or not isinstance(load.x.type, TensorType):
        return False
    axis = load.x.type.unit_axis
    return axis is not None and axis != k_axis + len(load.shape) - 2
