"""A check that each operation finds its operands in the layout it expects.

The IR's types do not say which thread holds which element. Lowered operations name layouts in their attributes. The
operation that makes a tile must name the same layout as the operations that read it. Buffers in shared memory are
checked too: a product says which axis of a buffer is its K, and this axis must be as long as the product is deep.

The number of a layout's warps is a power of two. If three warpgroups compute, or each has tile blocks of its own, a
layout may have warps that do not compute the tile.
"""

from collections.abc import Iterator, Mapping

from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops import (
    ConvertLayout,
    Dot,
    DotWait,
    FirstTile,
    Fixup,
    OptimizationBarrier,
    PackPairs,
    PackQuads,
    ReducePartials,
    Roles,
    ScatterPartials,
    SimtMma,
    Store,
    Subtile,
    SumLanes,
    TmaStore,
    ZeroUnless,
)
from cutile.backend.cuda.ops.pipeline import BufferType
from cutile.backend.cuda.pipeline.accumulators import THREE_WARPGROUPS, among_three, held_by_each_warpgroup
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.smem_sizes import warp_mask
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import ELEMENTWISE, is_tile
from cutile.errors import IRError
from cutile.ir import Block, Constant, For, Function, If, Op, Value, While
from cutile.ops.reduce import Reduce
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Permute, Reshape
from cutile.ops.sort import Sort, TakeAlongAxis, TopK

_IN_LAYOUT = (Fixup, ScatterPartials, DotWait, OptimizationBarrier, SimtMma, Sort, Store, SumLanes, ZeroUnless)
"""Operations whose operand has the layout `layout`, which is also the result's if there is one."""
_FROM_SOURCE = (
    PackQuads, ReducePartials, Broadcast, ConvertLayout, Subtile, Permute, Reduce, Reshape, TakeAlongAxis, TopK,
)  # fmt: skip
"""Operations whose first operand has the layout `source`."""


def check_layouts(function: Function) -> int:
    """Check the layouts of a lowered kernel's tiles; return the number of comparisons.

    Raises:
        IRError: an operation takes a tile to be in another layout than it is in, or warps that do not compute hold it.
    """
    for op in function.body.operations:
        if isinstance(op, Roles):
            _check_held(op, layouts_of(function))
    return _Layouts().block(function.body)


def _check_held(roles: Roles, layouts: Mapping[str, Layout]) -> None:
    """Check that the warps of a tile hold all of it, and wait for no others."""
    operations = list(roles.consumer.walk())
    pingpong = any(isinstance(op, FirstTile) and op.pingpong > 1 for op in operations)
    holds = held_by_each_warpgroup if pingpong else among_three
    for op in operations if pingpong or roles.warpgroups == THREE_WARPGROUPS else ():
        names = [op.attributes[key] for key in ("source", "layout") if key in op.attributes]
        if not isinstance(op, Constant) and not all(holds(layouts[name]) for name in names):
            raise IRError(f"{op.name} has a tile that lies as {names[0]}, in warps that do not compute it")
        if pingpong and isinstance(op, Reduce) and warp_mask(layouts[names[0]], op.axis):
            raise IRError(f"{op.name} has the warps of all tile blocks wait for one another")


class _Layouts:
    """The layout of each tile, if its operation names one."""

    def __init__(self) -> None:
        self._known: dict[Value, str] = {}

    def block(self, block: Block) -> int:
        """Check the operations of a block; return the number of comparisons."""
        return sum(self._operation(op) for op in block.operations)

    def _operation(self, op: Op) -> int:
        """Check an operation and its regions; return the number of comparisons."""
        count = 0
        for value, expected in _expected(op):
            actual = self._known.get(value)
            if actual is not None:
                count += 1
                if actual != expected:
                    raise IRError(f"{op.name} takes {value.name or 'a tile'} to lie as {expected}, it lies as {actual}")
        if isinstance(op, Dot):
            count += _operands_fit(op)
        if isinstance(op, For | While):
            for region in op.regions:  # a `for` has the induction variable ahead of the carried values
                self._carry(op.carried, region.arguments[len(region.arguments) - len(op.carried) :])
        count += sum(map(self.block, op.regions))
        if isinstance(op, For | While):
            count += self._same(op, op.carried, op.body.terminator.operands)
            self._carry(op.carried, op.results)
        elif isinstance(op, If):
            count += self._same(op, op.then.terminator.operands, op.orelse.terminator.operands)
            self._carry(op.then.terminator.operands, op.results)
        elif isinstance(op, Constant) and is_tile(op.result) and "layout" not in op.attributes:
            raise IRError(f"{op.result.name or 'a tile'} is a constant of which nobody says how it lies")
        elif op.results and is_tile(op.results[0]) and "layout" in op.attributes:
            self._known[op.results[0]] = op.attributes["layout"]
        return count

    def _carry(self, values: tuple[Value, ...], to: tuple[Value, ...]) -> None:
        """Give the values `to` the layouts of `values`, one by one."""
        for value, other in zip(values, to, strict=True):
            if value in self._known:
                self._known[other] = self._known[value]

    def _same(self, op: Op, values: tuple[Value, ...], others: tuple[Value, ...]) -> int:
        """Check that pairs of values have the same layout; return how many have any."""
        pairs = [(self._known.get(x), self._known.get(y)) for x, y in zip(values, others, strict=True)]
        both = [(x, y) for x, y in pairs if x is not None and y is not None]
        for x, y in both:
            if x != y:
                raise IRError(f"{op.name} carries a tile that lies as {x} and as {y}")
        return len(both)


def _operands_fit(op: Dot) -> int:
    """Check that buffers are as deep and wide as a product; return their number."""
    rows, columns = op.shape
    operands = [(op.right, op.right_k_major, columns, op.right_first)]
    if not op.from_registers:
        operands.append((op.left, op.left_k_major, rows, op.left_first))
    for buffer, k_major, across, first in operands:
        assert isinstance(buffer.type, BufferType)
        smem_layout = SmemLayout(*buffer.type.smem_layout)
        depth, wide = (smem_layout.width, smem_layout.length) if k_major else (smem_layout.length, smem_layout.width)
        if depth < first + op.depth or first % op.depth or wide < across:
            wanted = f"{first + op.depth} deep and {across} across"
            raise IRError(f"{op.name} takes {buffer.name} to be {wanted}, it is {depth} and {wide}")
    return len(operands)


def _expected(op: Op) -> Iterator[tuple[Value, str]]:
    """The tiles that an operation reads, and the layouts in which it expects them."""
    attributes = op.attributes
    if isinstance(op, _FROM_SOURCE) and "source" in attributes:
        yield op.operands[0], attributes["source"]
    elif isinstance(op, _IN_LAYOUT) or (isinstance(op, TmaStore) and not op.packed):
        tile = op.value if isinstance(op, Store | TmaStore) else op.operands[0]
        if "layout" in attributes:
            yield tile, attributes["layout"]
    elif isinstance(op, Dot):
        yield from ((tile, attributes["layout"]) for tile in op.sums[:1])  # a second one is a flag
    elif family(type(op)) in ELEMENTWISE and "layout" in attributes and not isinstance(op, PackPairs):
        for value in op.operands:
            if is_tile(value):
                yield value, attributes["layout"]
