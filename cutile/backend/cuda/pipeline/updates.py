"""Additions of whole tiles to memory: a pass of tile IR.

The front end writes `ct.atomic_red_view_tko(part, tile, index, ct.atomic.ADDF)` as an update of elements by address.

    %p = add(tensor_address(%y), ...)
    atomic_rmw(%p, %tile, %mask, %i, %j) {kind = 'addf'}     -->     cuda.add_tile(%y, %tile, %i, %j)

By address, each element takes an address of 64 bits and a test, and tile blocks have to run in linear order. But a sum
that the kernel does not read is the same in any order of tile blocks. Only its rounding differs, which atomic updates
leave open anyway.
"""

from cutile.backend.cuda.ops import AddTile
from cutile.backend.gpu.op_facts import work_of
from cutile.dtypes import f32, i32
from cutile.ir import Function, MutType, Op, Value
from cutile.ir.builder import ERASE, KEEP, Replacement, Rewriter, rewrite
from cutile.ops.atomic import AtomicRmw
from cutile.ops.debug import Assert
from cutile.ops.memory import TensorDim
from cutile.ops.pointer import LoadPointer, TensorAddress, TensorStride
from cutile.passes.redundancy import cse, dce


def add_tiles(function: Function) -> Function:
    """A copy of `function` in which each update of a whole tile is one operation.

    It is `function` itself where there is no such update.
    """
    operations = list(function.walk())
    if any(isinstance(op, Assert) for op in operations):
        return function
    # A loaded index depends on the address of the tensor that it is loaded from. The update does not begin there: the
    # search for its tensor stops at loads.
    definitions = {value: op for op in operations for value in op.results if not isinstance(op, LoadPointer)}
    used = {value for op in operations for value in op.operands}
    touched = {value for op in operations if not isinstance(op, _ASKS) for value in op.operands}
    tensors: dict[Op, Value] = {}
    for op in operations:
        if isinstance(op, AtomicRmw) and op.result not in used and _is_sum(op):
            sources = work_of([op.pointers], definitions)
            tensor, *others = (source.x for source in sources if isinstance(source, TensorAddress))
            # A tile is added row by row. A tensor that is accessed in any other way needs its tile blocks in order.
            rows = isinstance(tensor.type, MutType) and tensor.tensor.unit_axis == tensor.tensor.rank - 1
            if rows and tensor not in touched and not others:
                tensors[op] = tensor

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        tensor = tensors.get(rewriter.original)
        if tensor is None or not isinstance(op, AtomicRmw):
            return KEEP
        rewriter.builder.add(AddTile(rewriter.values[tensor], op.value, op.index))
        return ERASE

    return dce(cse(rewrite(function, rule))) if tensors else function


_ASKS = (TensorAddress, TensorDim, TensorStride)
"""Operations on a tensor that neither read nor write its elements."""


def _is_sum(op: AtomicRmw) -> bool:
    """Whether an update adds a tile, in any order, at an index of 32 bits."""
    adds = op.kind == "addf" and op.order == "relaxed" and op.scope != "system" and op.value.tile.dtype is f32
    return adds and bool(op.index) and all(start.tile.dtype is i32 for start in op.index)
