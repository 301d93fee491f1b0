"""Lowering for one group of warps, all of which do the same.

`lower` chooses their number, and makes room where tiles do not fit.
"""

from collections.abc import Mapping

from cutile.backend.cuda.budget import SPARE_REGISTERS, check_budget, product_words, registers, shared_room
from cutile.backend.cuda.lowering_context import LoweringContext, layouts_of
from cutile.backend.cuda.multistage import RunningLoop, begin
from cutile.backend.cuda.multistage_rules import MAX_STAGES_AHEAD
from cutile.backend.cuda.ops import StagedMma, StageTile
from cutile.backend.cuda.private_updates import UnreadUpdates
from cutile.backend.cuda.rows import choose_warps, row_passes
from cutile.backend.cuda.smem_sizes import step_of
from cutile.backend.cuda.target import Architecture, architecture
from cutile.backend.gpu.layout_assignment import MAX_MMA_WARPS
from cutile.backend.gpu.op_facts import DefUse, inside, is_scalar_work, source_of
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import bf16
from cutile.errors import KernelTypeError
from cutile.ir.builder import KEEP, Builder, Copier, Replacement, Rewriter, rewrite
from cutile.ir.constant import Constant
from cutile.ir.control import For, While
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import TensorType
from cutile.ops.arith import Add, FloorDiv, Max, Mul, Sub
from cutile.ops.cast import Convert
from cutile.ops.grid import TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Permute
from cutile.ops.view import LoadView
from cutile.passes.fast_math import lower_scaled_mma
from cutile.passes.redundancy import dce

# Loops of products are rewritten ahead of the lowering, in two ways.
#
# A loop that does nothing but run a loop of products becomes one loop with it (`flatten`). A product whose operands
# exceed the registers beside its sums becomes two products of half the depth (`with_half_steps`):
#
#     a, b = load_tile(x, i, k), load_tile(y, k, j)      a, b = load_tile(x, i, 2 k), load_tile(y, 2 k, j)
#     acc = mma(a, b, acc)                          -->  acc = mma(a, b, acc)
#                                                        a, b = load_tile(x, i, 2 k + 1), load_tile(y, 2 k + 1, j)
#                                                        acc = mma(a, b, acc)
#
# Tiles of half the extent lie at twice the index. Only operands that pass through registers need this: operands in
# stages take no registers.

Key = tuple[object, ...]
"""A product's location in the source, and the shapes of its left operand and accumulator."""


def key_of(op: Mma) -> Key:
    """The key that a product and its lowered form share."""
    return op.location, op.a.tile.shape, op.acc.tile.shape


def can_split_step(op: Mma, definitions: Mapping[Value, Op]) -> bool:
    """Whether a product can become two products of half its depth.

    Its operands are loads of stable tensors, and its depth is an even number of instructions' steps along K.
    """
    whole = op.a.tile.shape[-1] % (2 * step_of(op.a.tile.dtype)) == 0
    return whole and len(op.acc.tile.shape) == 2 and all(_chain(value, definitions) for value in (op.a, op.b))


def with_half_steps(function: Function, products: set[Key]) -> Function:
    """The function with two products of half the depth for each of these.

    Products that cannot be split (`can_split_step`) stay as they are.
    """
    definitions: dict[Value, Op] = {}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        definitions.update((value, op) for value in op.results)
        # Products of an unrolled loop have one key, but their operands may differ.
        if not isinstance(op, Mma) or key_of(op) not in products or not can_split_step(op, definitions):
            return KEEP
        chains = [_chain(value, definitions) for value in (op.a, op.b)]
        acc = op.acc
        for half in range(2):
            left, right = (
                _half(chain, axis, half, rewriter.builder) for chain, axis in zip(chains, (1, 0), strict=True)
            )
            rewriter.builder.location = op.location
            acc = rewriter.builder.value(Mma(a=left, b=right, acc=acc, use_fast_acc=op.use_fast_acc))
        return acc

    return dce(rewrite(function, rule))


def _chain(value: Value, definitions: Mapping[Value, Op]) -> list[Op]:
    """The load of an operand, then the permutations and conversions after it.

    Empty where the operand has other operations after its load. Empty also where the kernel may write the tensor: the
    halves are loaded where the product stands, and a store may stand between the load and the product.
    """
    op, passed = source_of(value, definitions, lambda op: isinstance(op, Permute | Convert))
    stable = isinstance(op, LoadTile) and isinstance(op.x.type, TensorType) and op.x.type.stable
    return [op, *reversed(passed)] if op is not None and stable else []


def _half(chain: list[Op], axis: int, half: int, builder: Builder) -> Value:
    """The operand of one step: half of the tile along `axis` of the operand."""
    load, *passed = chain
    assert isinstance(load, LoadTile)
    for op in reversed(passed):  # from the operand's axis to the load's
        axis = op.axes[axis] if isinstance(op, Permute) else axis
    builder.location = load.location
    twice = builder.value(Mul(x=load.index[axis], y=builder.constant(2)))
    at = builder.value(Add(x=twice, y=builder.constant(half)))
    index = tuple(at if a == axis else start for a, start in enumerate(load.index))
    shape = tuple(extent // 2 if a == axis else extent for a, extent in enumerate(load.shape))
    piece = LoadTile(x=load.x, index=index, shape=shape, latency=load.latency, bulk=load.bulk)
    value = builder.value(piece, load.result.name)
    for op in passed:
        builder.location = op.location
        value = builder.add(op.copy_with([value], (), ()), op.results[0].name).result
    return value


def flatten(function: Function) -> Function:
    """A copy of the function in which perfect nests of main loops are single loops.

        for t in range(a, b):                           for u in range((b - a) * n):
            for k in range(c, d):                           t, k = a + u // n, c + u % n      (n = d - c)
                acc = mma(load(t, k), load(k), acc)  -->    acc = mma(load(t, k), load(k), acc)

    The loads of the next outer iteration are then begun while the last products of this one run.
    """
    ones: set[Value] = set()

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, Constant) and op.value == 1:
            ones.add(op.result)
        inner = _only_loop(op, ones) if isinstance(op, For) else None
        return KEEP if inner is None or not isinstance(op, For) else _as_one(op, inner, rewriter.builder)

    return rewrite(function, rule)


def _only_loop(outer: For, ones: set[Value]) -> For | None:
    """The main loop in a loop that otherwise only computes numbers.

    None where there is none, or where the two cannot be one.
    """
    *work, end = outer.body.operations
    loops = [op for op in work if isinstance(op, For)]
    if len(loops) != 1 or not all(is_scalar_work(op) for op in work if op not in loops):
        return None
    (inner,) = loops
    nested = inside(inner)
    if not any(isinstance(op, Mma) for op in nested) or any(isinstance(op, For | While) for op in nested):
        return None
    own = {*outer.body.arguments, *(value for op in work for value in op.results)}
    # The single loop counts up to the product of both counts, which 8 or 16 bits may not hold.
    counts = all(loop.step in ones and loop.start.tile.dtype.bits >= 32 for loop in (outer, inner))
    carries = inner.carried == outer.body.arguments[1:] and end.operands == inner.results
    bounds = own.isdisjoint((inner.start, inner.stop)) and outer.start.type == inner.start.type
    # No operation may read what the outer loop carries: the single loop has only the values of the inner iteration.
    apart = all(op is inner or set(outer.body.arguments[1:]).isdisjoint(op.operands) for op in (*work, *nested))
    return inner if counts and carries and bounds and apart else None


def _as_one(outer: For, inner: For, builder: Builder) -> list[Value]:
    """One loop for two; return its results."""
    dtype = outer.induction.tile.dtype
    builder.location = outer.location
    zero = builder.constant(0, dtype)
    # An unsigned difference is never below 0: it would be huge where a loop is empty.
    count = builder.value(Sub(x=builder.value(Max(x=inner.stop, y=inner.start)), y=inner.start))
    rows = builder.value(Sub(x=builder.value(Max(x=outer.stop, y=outer.start)), y=outer.start))
    whole = builder.value(Mul(x=rows, y=count))
    divisor = builder.value(Max(x=count, y=builder.constant(1, dtype)))  # not 0 where the inner loop is empty
    arguments = [Value(value.type, value.name) for value in outer.body.arguments]
    with builder.block(*arguments) as body:
        iteration = arguments[0]
        row = builder.value(FloorDiv(x=iteration, y=divisor))
        column = builder.value(Sub(x=iteration, y=builder.value(Mul(x=row, y=divisor))))
        values = {
            outer.induction: builder.value(Add(x=outer.start, y=row), outer.induction.name),
            inner.induction: builder.value(Add(x=inner.start, y=column), inner.induction.name),
        }
        values |= dict(zip(inner.body.arguments[1:], arguments[1:], strict=True))
        copier = Copier(builder, values)
        for op in (*outer.body.operations, *inner.body.operations):
            if op is not inner and op is not outer.body.terminator:
                copier.operation(op)
    loop = builder.add(For(start=zero, stop=whole, step=outer.step, carried=outer.carried, body=body))
    return list(loop.results)


MAX_PRODUCT_REGISTERS = 176
"""Registers of a thread for sums and operands. Products that take more get more warps: with more, the compiler was seen
to spill (16 x 128 x 64 of bf16 by one warp: 208)."""
WIDE_SUMS = 64
"""Registers of a thread for the sums of all products, with which half as many warps are faster (`_reads_much`)."""
# A thread has 128 registers where two blocks share a multiprocessor. With more for these, code was seen to spill.
SHARED_BLOCK_REGISTERS = {9: 96}
"""Registers of a thread for the accumulator and the operands of a product where two blocks share a multiprocessor, by
major compute capability; 80 for all others."""


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function with every decision for `target` in it.

    Raises:
        KernelTypeError: its tiles need more shared memory or registers than there are; names the nearest that fit.
    """
    arch = architecture(target.arch)
    # In bf16, products of elements and scales are exact (`fast_math.py`), and tensor cores multiply it.
    function = flatten(lower_scaled_mma(function, bf16))
    warps = choose_warps(function)
    if options.num_worker_warps is not None:
        # Layouts spread tiles over a power of two of warps: the number is rounded down (`CompileOptions`).
        warps = 1 << (min(options.num_worker_warps, arch.max_threads // 32).bit_length() - 1)
    function = row_passes(function, warps, arch)
    room = shared_room(arch, options.occupancy or 1)
    first, lowered = _within(room, function, warps, arch)
    while options.num_worker_warps is None and warps < MAX_MMA_WARPS and _filled(lowered) > MAX_PRODUCT_REGISTERS:
        warps *= 2
        first, lowered = _within(room, function, warps, arch)
    if options.num_worker_warps is None and _reads_much(lowered, warps):
        by_half_the_warps = _within(room, function, warps // 2, arch)
        # Only where two blocks share a multiprocessor: alone, a block of so few warps waits for its operands.
        if by_half_the_warps[1].facts["min_blocks"] > 1:
            first, lowered, warps = *by_half_the_warps, warps // 2
    while deep_products := _too_deep(lowered, arch, options.occupancy or 1):
        function = with_half_steps(function, deep_products)
        first, lowered = _within(room, function, warps, arch)
    try:
        check_budget(function, lowered, arch, options)
    except KernelTypeError:  # nothing fits: report what the kernel needs with all stages, if that does not fit either
        check_budget(function, first, arch, options)
        raise
    planned_blocks = lowered.facts["min_blocks"]
    if planned_blocks > 1 and lowered.facts["shared_bytes"] > shared_room(arch, planned_blocks):
        planned_blocks = 0  # shared memory beside the stages leaves no room for another block
    lowered.facts["min_blocks"] = options.occupancy or planned_blocks or _occupancy(lowered, arch)
    return lowered


def _reads_much(function: Function, warps: int) -> bool:
    """Whether half as many warps would read fewer operands from shared memory.

    Each warp then has sums of 64 x 64, for which it reads a third less (measured on an H200, bf16, 128 x 128 x 64: 344
    TFLOP/s with half as many warps, 320 without). The sums of such a warp leave no registers for another tile of their
    extent, such as a residual.
    """
    layouts = layouts_of(function)
    products = [op for op in function.walk() if isinstance(op, StagedMma)]
    results = {op.result for op in products}
    # A product that adds to another one's result uses the same registers.
    sums = [layouts[op.attributes["layout"]] for op in products if op.acc not in results]
    staged = all(op.dtype.is_half for op in products) and not any(isinstance(op, Mma) for op in function.walk())
    beside = [op.result.tile.size for op in function.walk() if isinstance(op, LoadTile | LoadView)]
    wide = sum(layout.registers for layout in sums) == WIDE_SUMS
    return warps == MAX_MMA_WARPS and staged and wide and max(beside, default=0) < products[0].acc.tile.size


def _unstaged(function: Function, definitions: Mapping[Value, Op]) -> list[tuple[Mma, int, int]]:
    """The products that read no stages.

    With each, the registers of a thread for its sums, and for its operands.
    """
    layouts = layouts_of(function)
    return [(op, *product_words(op, layouts, definitions)) for op in function.walk() if isinstance(op, Mma)]


def _filled(function: Function) -> int:
    """Registers of a thread for the sums of all products and the largest operands."""
    words = _unstaged(function, DefUse(function.body).definitions)
    return sum(sums for _, sums, _ in words) + max((operands for *_, operands in words), default=0)


def _within(room: int, function: Function, warps: int, arch: Architecture) -> tuple[Function, Function]:
    """The function lowered twice: with all its stages, and with as many as fit.

    Only a lowered function says how much shared memory it needs beside its stages. So stages are taken away one by one
    until it fits into `room` bytes. A loop never has a single stage, which would be filled and read in turns.
    """
    first = lowered = OneGroup(function, warps, arch).run()
    while lowered.facts["shared_bytes"] > room:
        # `stage` is the first byte, the number of stages, and the bytes of each. Held rows need all of theirs.
        stages = [op.stage[1] for op in lowered.walk() if isinstance(op, StageTile) and not op.held]
        if not stages:
            break
        lowered = OneGroup(function, warps, arch, max(stages) - 1).run()
    return first, lowered


def _occupancy(function: Function, arch: Architecture) -> int:
    """Blocks per multiprocessor to ask of the compiler; 0 leaves it free.

    While one block of a product waits for its operands, another multiplies (measured on an H200, bf16, 128 x 128 x 64:
    287 TFLOP/s with two blocks, 189 with one). Both must fit: half the registers, half the shared memory.
    """
    threads, shared = function.facts["threads"], function.facts["shared_bytes"]
    # Without definitions, operands count as packed words: the fewest registers that they may take. If the code for two
    # blocks spills, the kernel is compiled anew without asking for two (`ATTEMPTS`).
    filled = [sums + operands for _, sums, operands in _unstaged(function, {})]
    fits = 2 * shared <= arch.shared_bytes and 2 * threads * 128 <= arch.registers
    return 2 if filled and fits and max(filled) <= SHARED_BLOCK_REGISTERS.get(arch.major, 80) else 0


def _too_deep(function: Function, arch: Architecture, blocks: int) -> set[Key]:
    """Products whose operands fit beside the sums only with a smaller depth."""
    definitions = DefUse(function.body).definitions
    most = registers(arch, function.facts["threads"], blocks) - SPARE_REGISTERS
    keys: set[Key] = set()
    for op, sums, operands in _unstaged(function, definitions):
        least = operands * step_of(op.a.tile.dtype) // op.a.tile.shape[-1]
        if can_split_step(op, definitions) and sums + least <= most < sums + operands:
            keys.add(key_of(op))
    return keys


class OneGroup(LoweringContext):
    """A function for one group of warps, all of which do the same."""

    def __init__(self, function: Function, warps: int, arch: Architecture, max_stages: int = MAX_STAGES_AHEAD) -> None:
        super().__init__(function, warps, arch)
        self._max_stages = max_stages
        self._updates = UnreadUpdates(self)
        self._running: RunningLoop | None = None
        self._blocks = 0

    def run(self) -> Function:
        """The lowered function."""
        source = self.function
        with self.builder.block(*(self.copy(value) for value in source.parameters)) as body, self._updates:
            self.make_block_ids(lambda axis: TileBlockId(axis=axis))
            self.operations(source.body.operations)
        lowered = Function(source.name, body, source.source, source.file, "cuda")
        # Threads meet in one reduction of a loop before they reach the memory of another one again: it needs no fence.
        self.smem.relax(op.body for op in lowered.walk() if isinstance(op, For | While))
        self.smem.place()
        lowered.facts = self.facts(threads=self.warps * 32, min_blocks=self._blocks)
        return lowered

    def operation(self, op: Op) -> None:
        """Lower one operation. A loop that loads ahead takes over its own operations."""
        if self._running is not None:  # such a loop has no loops inside
            if not self._running.lower(op):
                self._updates.lower(op)
            return
        self.builder.location = op.location
        self._running = begin(self, op, self._max_stages) if isinstance(op, For) else None
        if self._running is None:
            return self._updates.lower(op)
        self._blocks = max(self._blocks, self._running.blocks)
        self._running.run()
        self._running = None
