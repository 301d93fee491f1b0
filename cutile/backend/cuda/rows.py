"""Kernels without products, most of which reduce rows: passes of tile IR, warps.

`row_passes` runs all passes, in this order:

- `loads_first`: the loads of a stretch are begun before one of them is used;
- `recompute`: a row waits for its reduction as it was loaded, and is computed anew after the reduction;
- `row_quotients`: quotients of a row by one number are products with its reciprocal;
- `negative_exps`: exponentials of elements less the row's largest one take fewer instructions;
- `joined_products`: one multiplication makes both halves of a product.

A figure *of a copy* is a kernel's bandwidth as a share of that of a copy of as many bytes (`docs/benchmarks/memory`).
"""

from collections.abc import Mapping, Sequence

from cutile.analysis.affine import access_run
from cutile.backend.cuda.ops import Again, ClusterReduce, NegativeExp, ProductHalf, RowExp, RowQuotient
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout import round_up
from cutile.backend.gpu.layout_assignment import (
    ACCESSES,
    ELEMENTWISE,
    MAX_MMA_WARPS,
    is_tile,
    values_of,
    vector_width,
)
from cutile.backend.gpu.op_facts import DefUse, is_scalar_work
from cutile.conversion import NEAREST_EVEN
from cutile.dtypes import bf16, f32, i32, u32
from cutile.ir.builder import KEEP, Copier, Replacement, Rewriter, rewrite
from cutile.ir.constant import Constant
from cutile.ir.core import Block, Effect, Function, Op, Value
from cutile.ir.types import TensorType
from cutile.ops.arith import Abs, Add, Div, Fma, Max, Min, Mul, MulHi, Neg, Sub, Xor
from cutile.ops.cast import Convert
from cutile.ops.compare import Select
from cutile.ops.math import Exp, Exp2
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.pointer import LoadPointer
from cutile.ops.reduce import Fold, Folding, Reduce, ReduceMax, Scan
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Permute, Reshape
from cutile.ops.sort import Sort, TopK
from cutile.ops.view import LoadView, StoreView
from cutile.passes.redundancy import dce

THREAD_ELEMENTS = 32
"""Elements of a thread at most in the largest tile of a kernel without products, with the exceptions below."""
MAX_SCATTERED = 8
"""Elements of a thread at most that are accessed one by one: an address alone takes two registers."""
GATHERED_ELEMENTS = 32
"""Elements of 16 bits of a thread, where a tile is a single row that is loaded by an index. Few warps with many
elements are better: a thread loads nothing while it waits for the index (rows of 4096 bf16 on an H200: 0.96 of a copy,
0.95 with 16)."""
SINGLE_ELEMENTS = 64
"""Elements of 16 bits of a thread in a tile that is permuted, where each element is an access of its own. More accesses
are then under way at once (a transpose of 16383 x 16383 bf16 in tiles of 128 x 128 on an H200: 0.70 of a copy, 0.65
with 32)."""
MAX_SORTED = 16
"""Elements of a thread at most that are sorted: with its place, one takes two registers, and one of 64 bits three."""
MAX_HELD_WORDS = 64
"""Registers of a thread for all loads, up to which 32 warps hold a row. With more, 32 warps spill far more than 16
(layer_norm of 65536 on an H200: 2577 us in place of 754)."""


def choose_warps(function: Function) -> int:
    """Warps per block: a power of two, from the largest accumulator or tile.

    Tiles count only where there are no products.
    """
    accumulators = [op.acc.tile for op in function.walk() if isinstance(op, Mma)]
    words = [tile.size * max(1, tile.dtype.bits // 32) for tile in accumulators]
    if words:  # 2048 of a warp: 64 registers of a thread
        return min(MAX_MMA_WARPS, max(1, round_up(max(words)) // 2048))
    tiles = [value.tile for value in values_of(function) if is_tile(value)]
    largest = max((tile.size for tile in tiles), default=1)  # elements
    size = max((tile.dtype.bits // 8 for tile in tiles if tile.size == largest), default=1)
    definitions = DefUse(function.body).definitions
    rows = [op.tiles[0] if isinstance(op, Folding) else op.x for op in function.walk() if isinstance(op, Reduce | Fold)]
    memo: dict[Value, bool] = {}
    waits_narrow = any(row.tile.size == largest and _is_narrow(row, definitions, memo) for row in rows)
    # A warp has 1024 bytes of the largest tile, a thread 32. If a row of 16 bits waits for its sum, it takes half as
    # many registers as the f32 that is computed from it. Then a warp has 4096 bytes of f32, a thread 32 elements, which
    # leaves room for more rows. There are 8 warps at most, and more only where a thread would exceed `limits`.
    warps = min(8, max(1, round_up(largest * size) // (4096 if waits_narrow and size == 4 else 1024)))
    if any(_is_gathered_row(op, largest, definitions) for op in function.walk()):
        warps = min(warps, max(1, round_up(largest) // (32 * GATHERED_ELEMENTS)))
    accesses = [op for op in function.walk() if isinstance(op, ACCESSES) and access_run(op, definitions) is None]
    scattered = [op.operands[0].tile.size for op in accesses if is_tile(op.operands[0])]
    sorted_tiles = [op.x.tile.size for op in function.walk() if isinstance(op, Sort | TopK) and op.sorts_whole]
    is_single = any(isinstance(op, Permute) for op in function.walk()) and _are_single(function, largest)
    # Elements of a tile, and of a thread at most.
    limits = (
        (largest, SINGLE_ELEMENTS if is_single else THREAD_ELEMENTS),
        (max(scattered, default=0), MAX_SCATTERED),
        (max(sorted_tiles, default=0), MAX_SORTED),
    )
    most_warps = 32 if waits_narrow and loaded_words(function, 32 * 32) <= MAX_HELD_WORDS else 16
    while warps < most_warps and any(count > warps * 32 * limit for count, limit in limits):
        warps *= 2
    return warps


def loaded_words(function: Function, threads: int) -> int:
    """Registers of a thread for all loaded tiles."""
    loaded = [op.result.tile for op in function.walk() if isinstance(op, LoadTile | LoadMut | LoadView)]
    return sum(tile.size * tile.dtype.bits // 32 // threads for tile in loaded)


def _is_gathered_row(op: Op, largest: int, definitions: Mapping[Value, Op]) -> bool:
    """Whether an operation loads a row of `largest` elements by an index.

    The row's elements lie side by side, so that accesses are wide.
    """
    if not isinstance(op, LoadPointer) or not is_tile(op.result) or op.result.tile.dtype.bits != NARROW_BITS:
        return False
    tile = op.result.tile
    return tile.size == largest == max(tile.shape) and access_run(op, definitions) is not None


def _are_single(function: Function, largest: int) -> bool:
    """Whether tiles of `largest` elements have 16 bits, and are accessed one by one."""
    for op in function.walk():
        if not isinstance(op, LoadTile | LoadMut | LoadView | StoreMut | StoreView):
            continue
        tile = (op.value if isinstance(op, StoreMut | StoreView) else op.result).tile
        if tile.size == largest and (
            tile.dtype.bits != NARROW_BITS or vector_width(op.x.tensor, tile.shape) is not None
        ):
            return False
    return True


def _is_narrow(row: Value, definitions: Mapping[Value, Op], memo: dict[Value, bool]) -> bool:
    """Whether a tile is computed only from loads of its size with at most 16 bits."""
    if row not in memo:  # computed once: a tile may be an operand of many operations
        memo[row] = _is_of_narrow(row, definitions, memo)
    return memo[row]


def _is_of_narrow(row: Value, definitions: Mapping[Value, Op], memo: dict[Value, bool]) -> bool:
    """`_is_narrow`, by the operation that makes the tile."""
    op, size = definitions.get(row), row.tile.size
    if isinstance(op, LoadTile | LoadMut | LoadView):
        return row.tile.dtype.bits <= NARROW_BITS
    if op is None or (family(type(op)) not in ELEMENTWISE and not getattr(op, "elementwise", False)):
        return False
    same_size = [value for value in op.operands if is_tile(value) and value.tile.size == size]
    # Constants and repeated numbers do not count: they take no registers of their own.
    computed = [value for value in same_size if not isinstance(definitions.get(value), Broadcast | Constant)]
    return bool(computed) and all(_is_narrow(value, definitions, memo) for value in computed)


def row_passes(function: Function, warps: int, arch: Architecture) -> Function:
    """A copy of a function after all passes; itself where it has products."""
    if any(isinstance(op, Mma) for op in function.walk()):
        return function
    waiting = recompute(loads_first(function, warps), warps)
    return joined_products(negative_exps(row_quotients(waiting, arch.major >= PACKED_SINCE), warps))


# -- loads ----------------------------------------------------------------------------------------

MAX_WORDS_AHEAD = 16
"""Registers of a thread for all loads that are moved ahead in a stretch. With more, fewer thread blocks share a
multiprocessor and hide each other's waits (layer_norm of 4096 on an H200: 92 registers instead of 80, 0.88 of a copy
instead of 0.94)."""


def loads_first(function: Function, warps: int) -> Function:
    """A copy of the function in which loads come before their first use.

        c = convert(load(cos))                  t = load(cos)
        s = convert(load(sin))          -->     u = load(sin)
                                                c = convert(t)
                                                s = convert(u)

    A thread waits where it first computes with a loaded tile. Loads come first in each stretch of operations. A stretch
    ends with a reduction, a scan or a sort: threads wait for each other there, and tiles that were loaded ahead would
    fill registers meanwhile. A stretch also ends with a loop, a branch, or an effect beyond reads and writes.
    """
    return function if function.facts.get("unsafe") else _LoadsFirst(32 * warps).function(function)


class _LoadsFirst(Copier):
    """The walk: each block is cut into stretches, and each stretch put in order."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self._threads = threads

    def block(self, block: Block) -> Block:
        ordered: list[Op] = []
        stretch: list[Op] = []
        for op in block.operations:
            stretch.append(op)
            if op.regions or op.effect > Effect.WRITE or isinstance(op, Reduce | Fold | Scan | Sort | TopK):
                ordered += self._in_order(stretch)
                stretch = []
        with self.builder.block(*map(self.value, block.arguments)) as copy:
            for op in (*ordered, *self._in_order(stretch)):
                self.operation(op)
        return copy

    def _in_order(self, stretch: Sequence[Op]) -> list[Op]:
        """A stretch whose loads, and their indices, stand where its first load stood."""
        definitions = {value: op for op in stretch for value in op.results}
        ahead: set[Op] = set()
        first = len(stretch)
        words = 0
        for place, op in enumerate(stretch):
            if not isinstance(op, LoadTile | LoadView) or not is_tile(op.result):
                continue
            work = _work(op.index, definitions)
            words += _words(op, self._threads)
            if _is_stable(op.x) and op.x not in definitions and work is not None and words <= MAX_WORDS_AHEAD:
                ahead |= work
                ahead.add(op)
                first = min(first, place)
        rest = stretch[first:]
        return [*stretch[:first], *(op for op in rest if op in ahead), *(op for op in rest if op not in ahead)]


def _words(load: LoadTile | LoadView, threads: int) -> int:
    """Registers of a thread for a loaded tile."""
    return -(-load.result.tile.size * load.result.tile.dtype.bits // (32 * threads))


def _is_stable(tensor: Value) -> bool:
    """Whether nothing writes to a tensor while the kernel runs."""
    return isinstance(tensor.type, TensorType) and tensor.type.stable


def _work(values: Sequence[Value], definitions: Mapping[Value, Op]) -> set[Op] | None:
    """The operations that compute some numbers.

    None where one of them does more than compute with numbers.
    """
    work: set[Op] = set()
    pending = list(values)
    while pending:
        op = definitions.get(pending.pop())
        if op is None or op in work:
            continue
        if not is_scalar_work(op):
            return None
        work.add(op)
        pending += op.operands
    return work


# -- rows that wait -------------------------------------------------------------------------------

MIN_ANEW_ELEMENTS = 64
"""Elements of a thread from which on a tile is computed anew. With 32 there are registers for the tile itself, and to
compute it anew is slower (softmax of 4096 on an H200: 0.93 of a copy, 0.96 without)."""
NARROW_BITS = 16
"""Bits of an element at most that waits in fewer registers than the f32 that is computed from it."""

# Operations that are repeated after a reduction: each takes a few instructions.
CHEAP = (Abs, Add, Convert, Exp, Exp2, Fma, Max, Min, Mul, Neg, RowExp, Select, Sub)


def recompute(function: Function, warps: int) -> Function:
    """A copy of the function in which rows wait as they were loaded.

        t = convert(x)                          t = convert(x)
        s = reduce_sum(t * t)                   s = reduce_sum(t * t)
        y = t * rsqrt(s)                -->     u = convert(again(x))
                                                y = u * rsqrt(s)

    A row waits until all threads have added up. As bf16 it takes half as many registers as the f32 that is computed
    from it. So cheap operations are repeated after the reduction. `again` is an optimisation barrier around the same
    value. Without it the compiler would find that it has computed `u` before, as `t`.
    """
    if loaded_words(function, 32 * warps) > MAX_HELD_WORDS:
        return function  # the loads alone would not stay in registers
    return _Recompute(function, warps).function(function)


class _Recompute(Copier):
    """The walk: after a reduction, which ends a stretch, tiles are computed anew."""

    def __init__(self, function: Function, warps: int) -> None:
        super().__init__()
        self._threads = 32 * warps
        self._definitions = DefUse(function.body).definitions
        self._home: dict[Value, Block] = {}  # the source's block of each value
        self._stretch: dict[Value, int] = {}  # the number of the stretch of each value
        self._number = 0  # of the current stretch
        self._anew: dict[Value, Value] = {}  # by value of the source, its tile computed anew in the current stretch
        self._open: list[Block] = []  # the source's blocks around the current operation
        self._sources: dict[Value, Value | None] = {}  # memo of `_source`

    def block(self, block: Block) -> Block:
        self._open.append(block)
        before, self._anew = self._anew, {}
        copy = super().block(block)
        self._anew = before
        self._open.pop()
        return copy

    def operation(self, op: Op) -> None:
        ends = isinstance(op, Reduce | Fold) and self._is_large(op.operands[0])
        first_copies: dict[Value, Value] = {}
        for value in op.operands:
            late = self._stretch.get(value, self._number) < self._number and self._home[value] is self._open[-1]
            if late and self._is_large(value) and self._source(value) not in (None, value):
                first_copies[value] = self.values[value]
                self.values[value] = self._computed(value)
        super().operation(op)
        self.values.update(first_copies)
        for value in op.results:
            self._home[value], self._stretch[value] = self._open[-1], self._number
        if ends:
            self._number += 1
            self._anew = {}

    def _is_large(self, value: Value) -> bool:
        return is_tile(value) and value.tile.size >= MIN_ANEW_ELEMENTS * self._threads

    def _source(self, value: Value) -> Value | None:
        """The narrow load from which a tile is computed cheaply.

        None where there is none, or several.
        """
        if value not in self._sources:  # computed once: a tile may be an operand of many operations
            self._sources[value] = self._found_source(value)
        return self._sources[value]

    def _found_source(self, value: Value) -> Value | None:
        op = self._definitions.get(value)
        if isinstance(op, LoadTile | LoadMut | LoadView):
            return value if value.tile.dtype.bits <= NARROW_BITS else None
        if not isinstance(op, CHEAP):
            return None
        sources = {self._source(operand) for operand in op.operands if self._is_computed(operand)}
        return sources.pop() if len(sources) == 1 else None

    def _is_computed(self, value: Value) -> bool:
        """Whether a tile is large, and no constant or repeated number.

        Constants and repeated numbers take no registers of their own.
        """
        op = self._definitions.get(value)
        return self._is_large(value) and (op is None or op.name not in ("constant", "broadcast"))

    def _computed(self, value: Value) -> Value:
        """A tile, computed anew if it is of an earlier stretch."""
        if self._stretch.get(value, self._number) == self._number or not self._is_computed(value):
            return self.values[value]
        if value not in self._anew:
            op = self._definitions[value]
            if isinstance(op, LoadTile | LoadMut | LoadView):
                copy: Op = Again(x=self.values[value])
            else:
                copy = op.copy_with([self._computed(operand) for operand in op.operands], (), ())
            self._anew[value] = self.builder.value(copy, value.name)
        return self._anew[value]


# -- products -------------------------------------------------------------------------------------


def joined_products(function: Function) -> Function:
    """A copy of the function with one multiplication for both halves of products.

        high = mul_hi(x, y)                high = product_half(x, y) {upper}
        low = mul(x, y)            -->     low = product_half(x, y)

    The upper half takes a multiplication to 64 bits, whose result has the lower half as well. Philox makes random
    numbers of such pairs, and spends most of its time in multiplications. A pair is joined only if a further pair is
    computed from its lower half. The results of the last pairs would stay in pairs of registers: with all ten steps of
    Philox joined, a thread of dropout takes 80 registers in place of 72 (on an H200, of a copy: 0.81; 0.89 with none
    joined).
    """
    definitions = DefUse(function.body).definitions
    low = {op.operands: op for op in function.walk() if isinstance(op, Mul) and _is_word_tile(op.result)}
    pairs = {op.operands for op in function.walk() if isinstance(op, MulHi) and op.operands in low}
    # The values that are multiplied in pairs, directly or after an exclusive or, as in a step of Philox.
    multiplied: set[Value] = set()
    pending = [value for operands in pairs for value in operands]
    while pending:
        value = pending.pop()
        multiplied.add(value)
        op = definitions.get(value)
        pending += op.operands if isinstance(op, Xor) else ()
    joined = {operands for operands in pairs if low[operands].result in multiplied}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, Mul | MulHi) and rewriter.original.operands in joined:
            return rewriter.builder.value(ProductHalf(x=op.x, y=op.y, upper=isinstance(op, MulHi)))
        return KEEP

    return rewrite(function, rule) if joined else function


def _is_word_tile(value: Value) -> bool:
    return is_tile(value) and value.tile.dtype in (i32, u32)


# -- quotients ------------------------------------------------------------------------------------

MIN_QUOTIENTS = 8
"""Quotients by one divisor from which on they are products with its reciprocal, which is computed once."""
PACKED_SINCE = 9
"""The first major compute capability with arithmetic on two u16 in one word (PTX ISA, "add")."""


def row_quotients(function: Function, packs: bool) -> Function:
    """A copy of the function with products for quotients that are rounded to bf16.

        y = convert(e / broadcast(s))      -->      y = row_quotient(e, broadcast(s))

    A correctly rounded quotient takes a dozen instructions, a product with the reciprocal takes one. The product is off
    by at most 2 units in the last place of f32. So it rounds to the same bf16, unless it lies within 2 units of a point
    between two bf16 numbers where the rounding changes. There, and where the divisor has no normal reciprocal, the
    thread divides. Every result stays the same.
    """
    chains = DefUse(function.body)
    definitions, users = chains.definitions, chains.users

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if not isinstance(op, Convert) or op.dtype is not bf16 or op.rounding not in (None, NEAREST_EVEN):
            return KEEP
        wide = rewriter.original.operands[0]
        quotient = definitions.get(wide)
        if not isinstance(quotient, Div) or wide.tile.dtype is not f32 or len(users[wide]) > 1:
            return KEEP
        divisor = definitions.get(quotient.y)
        if not isinstance(divisor, Broadcast) or divisor.result.tile.size < MIN_QUOTIENTS * divisor.x.tile.size:
            return KEEP
        x, y = (rewriter.values.get(value, value) for value in quotient.operands)
        return rewriter.builder.value(RowQuotient(x=x, y=y, packs=packs), op.result.name)

    return dce(rewrite(function, rule))


# -- exponentials ---------------------------------------------------------------------------------

MIN_EXPS = 8
"""Exponentials of a thread from which on they take the fast path: a thread tests the range of up to 16 of them at once
(`intrinsics/math.py`, `BRANCH_ELEMENTS`)."""


def negative_exps(function: Function, warps: int) -> Function:
    """A copy of the function with fast exponentials of numbers that are at most 0.

        e = exp(x - broadcast(m))       -->      e = negative_exp(broadcast(m) - x)

    `m` is computed from a largest element. No proof is needed that `x` is not above `m`: `negative_exp(t)` is
    `exp(-t)` for every number, and is fast if all numbers of a thread lie in its range. `m - x` has the bits of
    `x - m`, but for the sign.

    Exponentials stay as they are where `m` is loaded. The gradient of cross entropy is such a kernel, and waits for
    memory alone (32000 columns on an H200, in pieces of 8192: 0.90 of a copy with `negative_exp`, 0.95 without).
    """
    chains = DefUse(function.body)
    definitions, users = chains.definitions, chains.users

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        source = rewriter.original
        difference = definitions.get(source.operands[0]) if isinstance(op, Exp) else None
        if not isinstance(difference, Sub) or len(users[difference.result]) > 1 or op.result.tile.dtype is not f32:
            return KEEP
        if op.result.tile.size < MIN_EXPS * 32 * warps or not _is_largest(difference.y, definitions):
            return KEEP
        x, y = (rewriter.values.get(value, value) for value in difference.operands)
        negative = rewriter.builder.value(Sub(x=y, y=x))
        return rewriter.builder.value(NegativeExp(x=negative), source.result.name)

    return dce(rewrite(function, rule))


def _is_largest(value: Value, definitions: Mapping[Value, Op]) -> bool:
    """Whether a number or a tile is computed from a largest element."""
    op = definitions.get(value)
    if isinstance(op, ReduceMax | Max):
        return True
    if isinstance(op, ClusterReduce):
        return op.kind.startswith("reduce_max")
    return isinstance(op, Broadcast | Reshape | Convert) and _is_largest(op.x, definitions)
