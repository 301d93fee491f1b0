"""Which kernels are lowered to specialised warps: some load by the copy engine, the others multiply (sm_90a).

    for each tile block of this thread block:           the last four warps      |  the groups of four before them
        acc = zeros                                     for each tile block:     |  for each tile block:
        for k in 0..n:                                    for k in 0..n:         |    for k in 0..n:
            acc = mma(x[i, k], y[k, j], acc)     -->        acquire; load x, y   |      wait; multiply; release
        z[i, j] = convert(acc)                                                   |    z[i, j] = convert(acc)

The loading warps run what the loads' indices and the loop's bounds need, and no more. They run ahead by the ring's
slots, also into the next tile block while the others still write the last one. The rules are in the order of the
tests in `plan`; the first that does not hold is the answer, and stands in the lowered IR.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cutile.backend.cuda import alone as alone_
from cutile.backend.cuda import thirds
from cutile.backend.cuda import trailing as trailing_
from cutile.backend.cuda.crosswise import crosswise_accumulator, fragment_registers
from cutile.backend.cuda.exchange import exchanged, sums_of, whole
from cutile.backend.cuda.forms import Form, columns_fit, form_of
from cutile.backend.cuda.guards import guards, is_scalar_work, operands_of
from cutile.backend.cuda.hints import slots_wanted
from cutile.backend.cuda.layout import Layout, group_accumulator
from cutile.backend.cuda.nearby import parts_nearby
from cutile.backend.cuda.outer import outer_groups
from cutile.backend.cuda.panels import ALIGNMENT, GROUP, ROWS, STEP_BYTES, Panels, panels_fit
from cutile.backend.cuda.split import MOST_PIECES, nearby_bytes, why_whole
from cutile.backend.cuda.target import Architecture
from cutile.backend.interface import CompileOptions, TensorMap
from cutile.dtypes import bf16, f16, f32, i32, tf32
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import TensorType, TileType
from cutile.ops.cast import Convert
from cutile.ops.grid import TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.shape import Permute
from cutile.ops.view import StoreView
from cutile.passes.reorder import why_linear

MOST_APART = 64
"""Registers of a thread for products that are yet to be added to its sums."""
MOST_BESIDE = 144
"""Registers of a thread for its sums and for the operand that it reads."""
MOST_TWICE = 96
"""Sums of a thread beside which it has registers for as many again."""
TOGETHER = 512
"""Products of 8-bit floats that the tensor cores add up before they are added in f32."""
MOST_SLOTS = 8
GOOD_SLOTS = 4
"""Slots of a ring for which a store makes do with fewer places."""
MOST_BUFFERS = 4
"""Places per warp for pieces of a tile on their way to memory."""
LEAST_SUMS = 32
"""Sums of a thread from outer products up to which one warp group has a tile to itself."""
MOST_SUMS = 128
"""Accumulator registers of a thread that leave room for the rest."""
AT_ONCE = 132
"""Tile blocks that are at work at one time: the multiprocessors of an H100 or H200."""
BARRIER_BYTES = 8
CLUSTERS = (1, 2, 4, 8)
"""Blocks that a cluster may have, where all kinds of device of an architecture are to take it."""
WARP_ROWS = 16
"""Rows of a result that one warp holds together."""
REGISTERS = {1: (0, 0), 2: (56, 224), 3: (32, 160)}
REGISTERS_ALONE = (40, 232)
"""Registers of a loading and of a computing thread, by groups: 65536 hold them all; 0 leaves the number alone."""


@dataclass(frozen=True)
class Operand:
    """One operand of the product.

    Attributes:
        load: where it comes from.
        panels: how it lies in shared memory.
        axis: the axis of the load's tile that is contiguous in memory.
        passed: what happens to the tile before it is multiplied: the exchange of its axes, which is another way to read
            it, and the conversion from f32 to tf32, which the copy engine does on the way.
        rounded: whether that is among these.
        shared: blocks of a cluster that need the same tile, and load a part each.
    """

    load: LoadTile
    panels: Panels
    axis: int
    passed: tuple[Op, ...] = ()
    rounded: bool = False
    shared: int = 1

    @property
    def map(self) -> TensorMap:
        """How the copy engine loads it."""
        _, rows, _ = self.panels.part(self.shared)
        box = (rows, self.panels.span) if self.axis == 1 else (self.panels.span, rows)
        return TensorMap(box, self.panels.swizzle, (1 - self.axis, self.axis), self.rounded)


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
        return Panels(columns, 1, 2, k_major=False).span if columns % 16 == 0 else columns

    @property
    def ends_in_ring(self) -> bool:
        """Whether the last result goes by way of the ring's slots: into what each group alone has read of them."""
        piece = WARP_ROWS * Panels(self.product.acc.tile.shape[1], 1, 2, k_major=False).swizzle
        return self.trailing and self.left.panels.offset(ROWS, 0) == 4 * piece and self.slots > self.buffers

    @property
    def grouped(self) -> int:
        """Rows of tile blocks that are gone through together: those at work cover a square of the result."""
        rows, columns = self.product.acc.tile.shape
        return max(1, round(math.sqrt(AT_ONCE * columns / rows)))

    @property
    def slot_bytes(self) -> int:
        """From slot to slot."""
        return self.left.panels.place_bytes + self.right.panels.place_bytes

    @property
    def registers(self) -> tuple[int, int]:
        """Of a loading and of a computing thread; 0 leaves the number alone."""
        return REGISTERS_ALONE if self.alone else REGISTERS[self.groups]

    @property
    def threads(self) -> int:
        """Of a block."""
        return GROUP * (self.groups + 1)


class _Refused(Exception):
    """A rule does not hold; the text is the reason."""


def plan(function: Function, arch: Architecture, options: CompileOptions) -> Specialised | str:
    """The plan for a kernel, or the reason why there is none."""
    try:
        return _plan(function, arch, options)
    except _Refused as reason:
        return str(reason)


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise _Refused(reason)


def _plan(function: Function, arch: Architecture, options: CompileOptions) -> Specialised:
    _require((arch.major, arch.suffix) == (9, "a"), f"{arch.name} has no warp group products (sm_90a has)")
    loop, product = _loop_of_products(function)
    _require(len(product.acc.tile.shape) == 2, "a batch of products in one tile")
    rows, columns = product.acc.tile.shape
    depth = product.a.tile.shape[1]
    dtype, other, acc = product.a.tile.dtype, product.b.tile.dtype, product.acc.tile.dtype
    form = form_of(dtype, other, acc)
    by_fma = dtype is other is acc is f32
    if form is None and not by_fma:
        of = f"{dtype}" if dtype is other else f"{dtype} by {other}"
        raise _Refused(f"products of {of} that add up in {acc} keep to a warp")
    definitions = {value: op for op in function.walk() for value in op.results}
    turns = form is not None and not form.any_major  # of what lies across K on the way in
    across = [turns and _lies_across(*each, definitions) for each in ((product.a, 1), (product.b, 0))]
    crosswise, swapped = any(across), across[1] or (form is not None and exchanged(rows, columns))
    keeps = not (across[0] and swapped)
    _require(keeps, f"the left operand, of {dtype}, lies across K: turned only where the operands keep their places")
    tall, wide = (columns, whole(rows)) if swapped else (rows, columns)
    groups = (
        _outer_groups(rows, columns) if form is None else _groups(tall, wide, form, "columns" if swapped else "rows")
    )
    sums = tall * wide // (GROUP * groups)
    if form is not None and crosswise:
        twice = not form.promoted or sums <= MOST_TWICE
        _require(twice, f"a thread would hold {sums} sums twice, and has registers for {MOST_TWICE}")
        held = sums + fragment_registers(tall, depth * dtype.bits // 8, groups)
        _require(held <= MOST_BESIDE, f"a thread would hold {held} sums and operands, and has room for {MOST_BESIDE}")
    _require(depth * dtype.bits // 8 % STEP_BYTES == 0, f"a depth of {depth} is no whole number of steps")
    _require(not (why := why_linear(function)), f"tile blocks keep their order: {why}")
    stores_views = any(isinstance(op, StoreView) for op in function.walk())
    unsafe = bool(function.facts.get("unsafe", False))
    _require(not (unsafe and stores_views), "what is stored by address may be what is loaded ahead")
    wanted_warps = options.num_worker_warps or 4 * groups
    solo = groups == alone_.GROUPS and not by_fma and wanted_warps == alone_.WARPS
    fits = solo or wanted_warps == 4 * groups
    _require(fits, f"{wanted_warps} worker warps are asked for, a tile of {rows} rows has {4 * groups}")
    _require(options.occupancy in (None, 1), f"{options.occupancy} blocks to a multiprocessor are asked for")
    uses = Counter(value for op in function.walk() for value in op.operands)
    left = _operand(product.a, 1, loop, definitions, uses)
    right = _operand(product.b, 0, loop, definitions, uses)
    if swapped:
        left, right = right, left
    bounds = (loop.start, loop.stop, loop.step)
    axes = {each: block_axes((*each.load.index, *bounds), definitions) for each in (left, right)}
    asserts = guards(function, loop)
    if asserts is None:
        raise _Refused("it asserts under conditions or in loops that the loading warps do not follow")
    # A cluster's last block may have no tile block: what it does for one beyond the grid must have no effect.
    by_itself = bool(asserts) or stores_views
    hints = replace(options, num_cta_in_cga=1) if by_itself else options
    cluster, along, left, right = _cluster(left, right, axes, hints, swapped, exchanged(rows, columns))
    known = (product, left.load, right.load, *left.passed, *right.passed)
    others = [op for op in loop.body.operations[:-1] if op not in known and op not in asserts]
    for op in others:
        _require(is_scalar_work(op), f"the loop does more than multiply: {op.name}")
    _require(loop.body.terminator.operands == (product.result,), "the loop carries more than the sums")
    _require(product.acc is loop.body.arguments[1], "what is added to is not what the loop carries")
    _require(uses[product.result] == 1, "the sums are used within the loop")
    step = definitions.get(loop.step)
    _require(isinstance(step, Constant) and step.value > 0, "the loop's step is no positive constant")
    wanted = [loop.start, loop.stop, loop.step, *left.load.index, *right.load.index]
    needed = _scalar_slice(wanted, "an index of a load", definitions, loop)
    for op in asserts:
        needed |= _scalar_slice(operands_of(op), "an assertion", definitions, loop)
    accumulator = sums_of(rows, columns, groups) if swapped else group_accumulator((rows, columns), groups)
    if groups == thirds.GROUPS:
        _require(not swapped, f"{thirds.TALL} columns of few rows do not divide among 2 warp groups")
        _require(not crosswise, f"three warp groups do not turn operands of {dtype} on the way in")
        why = thirds.why_not_thirds(function, loop, product, accumulator, apart=form is not None and form.promoted)
        _require(why is None, why or "")
    if crosswise:
        accumulator = crosswise_accumulator((rows, columns), groups, left.panels.size, exchanged=swapped)
    if by_fma:
        by_k = left.panels.k_major, right.panels.k_major
        found = outer_groups((rows, columns), 4 * groups, by_k)
        if found is None:
            raise _Refused(f"{rows} x {columns} sums do not divide among {4 * groups} warps")
        accumulator = found
    pieces = min(options.num_pieces or 1, MOST_PIECES)
    moving = bool(block_axes(bounds, definitions))
    whole_for = why_whole(accumulator, definitions.get(loop.carried[0]), moving, cluster, groups, pieces)
    store = None if swapped or crosswise else _bulk_store(function)
    if solo:
        accumulator = alone_.alone_accumulator((rows, columns))
        promoted = form is not None and form.promoted
        _require(not (swapped or crosswise or promoted), "warp groups alone add up 16-bit operands as they lie")
        _require(not asserts, "warp groups alone end at no assert")
        _require(store is not None, "warp groups alone write by the copy engine, which does not store this result")
        _require(cluster == 1, "warp groups alone share no operands with another block")
        _require(not block_axes(bounds, definitions), "tile blocks of warp groups alone have as many turns each")
        whole_for = "warp groups have tile blocks of their own"
        why = alone_.why_not_alone(function, loop, product, accumulator)
        _require(why is None, why or "")
    piece = Panels(columns, ROWS, 2, k_major=False) if store is not None else None
    slot_bytes = left.panels.place_bytes + right.panels.place_bytes
    parts = 0 if whole_for else parts_nearby(function, loop, accumulator, pieces)
    sent = nearby_bytes(accumulator, parts, pieces) if parts else 0
    together = 1 if solo else groups
    apart = form is not None and form.promoted
    trailing = (
        (store is not None and piece is not None and groups == trailing_.GROUPS and cluster == 1)
        and not (solo or by_fma or apart or not whole_for)
        and trailing_.may_trail(function, loop, store, sums, piece.count)
    )
    for buffers in _buffers(rows // (ROWS * together) * piece.count) if piece is not None else [0]:
        staged = buffers * groups * piece.panel_bytes if piece is not None else 0
        most = slots_wanted(left.load, right.load, MOST_SLOTS)
        slots = min(most, (arch.shared_bytes - ALIGNMENT - max(staged, sent)) // slot_bytes)
        if slots >= min(GOOD_SLOTS, most) or (buffers <= 1 and slots >= 2):
            return Specialised(
                loop,
                product,
                left,
                right,
                groups,
                cluster,
                along,
                slots,
                accumulator,
                store,
                buffers,
                frozenset(needed),
                frozenset(asserts),
                *(_promoted(tall, wide, depth, groups) if form is not None and form.promoted else (0, 0)),
                options.limit_waits,
                swapped,
                crosswise,
                whole_for,
                by_fma,
                solo,
                pieces,
                parts,
                trailing,
            )
    raise _Refused(f"two slots of {slot_bytes} bytes do not fit into shared memory")


def _loop_of_products(function: Function) -> tuple[For, Mma]:
    products = [op for op in function.walk() if isinstance(op, Mma)]
    _require(len(products) == 1, f"the kernel has {len(products)} products, not one")
    (product,) = products
    loops = [op for op in function.body.operations if isinstance(op, For) and product in op.body.operations]
    _require(len(loops) == 1, "the product is not in a loop of the kernel's own")
    return loops[0], product


def _groups(rows: int, columns: int, form: Form, named: str = "rows") -> int:
    """The warp groups that share a tile's rows; they are `named` otherwise where the operands have changed places."""
    others = "columns" if named == "rows" else "rows"
    _require(rows % ROWS == 0, f"a tile of {rows} {named} is no whole number of {ROWS}")
    step = "16" if form.sums is i32 and columns > 32 else "8"
    _require(columns_fit(form, columns), f"{columns} {others}: a multiple of {step} up to 256 is wanted")
    groups = {ROWS: 1, thirds.TALL: thirds.GROUPS}.get(rows, 2)
    _require(rows % (ROWS * groups) == 0, f"{rows} {named} do not divide among {groups} warp groups")
    sums = rows * columns // (GROUP * groups)
    _require(sums <= MOST_SUMS, f"a thread would hold {sums} sums, and has registers for {MOST_SUMS}")
    return groups


def _lies_across(value: Value, k_axis: int, definitions: Mapping[Value, Op]) -> bool:
    """Whether an operand is loaded from a tensor that is contiguous along another axis than the product's K."""
    load = definitions.get(value)
    while isinstance(load, Convert | Permute):
        k_axis = 1 - k_axis if isinstance(load, Permute) else k_axis
        load = definitions.get(load.x)
    axis = load.x.type.unit_axis if isinstance(load, LoadTile) and isinstance(load.x.type, TensorType) else None
    return axis is not None and axis != k_axis


def _outer_groups(rows: int, columns: int) -> int:
    """The warp groups that share the sums of outer products."""
    groups = 1 if rows * columns <= GROUP * LEAST_SUMS else 2
    sums = rows * columns // (GROUP * groups)
    _require(sums <= MOST_SUMS, f"a thread would hold {sums} sums, and has registers for {MOST_SUMS}")
    return groups


def _operand(value: Value, k_axis: int, loop: For, definitions: Mapping[Value, Op], uses: Counter[Value]) -> Operand:
    side = "left" if k_axis == 1 else "right"
    load = definitions.get(value)
    _require(uses[value] == 1, f"the {side} operand is used twice")
    passed: list[Convert | Permute] = []
    while isinstance(load, Permute) or (isinstance(load, Convert) and (load.x.tile.dtype, load.dtype) == (f32, tf32)):
        passed.append(load)
        _require(uses[load.x] == 1, f"the {side} operand is used before it is {load.name}d")
        load = definitions.get(load.x)
    along = k_axis if sum(isinstance(each, Permute) for each in passed) % 2 == 0 else 1 - k_axis
    if not isinstance(load, LoadTile) or load not in loop.body.operations:
        raise _Refused(f"the {side} operand is not loaded in the loop")
    _require(load.bulk, f"the {side} operand's load keeps off the copy engine: it says ct.tma.DISABLED")
    tensor = load.x.type
    if not isinstance(tensor, TensorType):
        raise _Refused(f"the {side} operand is a tensor that this launch writes")
    _require(load.x not in definitions, f"the {side} operand's tensor is no argument, but made in the kernel")
    axis = tensor.unit_axis
    if axis is None:
        raise _Refused(f"no axis of the {side} operand's tensor is known to be contiguous")
    _require(tensor.alignment == 16, f"rows of the {side} operand's tensor do not begin at multiples of 16 bytes")
    width, length = load.shape[axis], load.shape[1 - axis]
    if k_axis == 1 and axis == along and length % ROWS:
        length = whole(length)
    size = tensor.dtype.bits // 8
    _require(panels_fit(width, length, size), f"the {side} operand's tile {load.shape} does not lie in whole panels")
    rounded = any(isinstance(each, Convert) for each in passed)
    return Operand(load, Panels(width, length, size, axis == along), axis, tuple(passed), rounded)


def block_axes(values: Sequence[Value], definitions: Mapping[Value, Op]) -> frozenset[int]:
    """The axes of the grid along which these numbers differ from block to block."""
    found: set[int] = set()
    seen: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        op = definitions.get(value)
        if op is None or value in seen:
            continue
        seen.add(value)
        if isinstance(op, TileBlockId):
            found.add(op.axis)
        pending += op.operands
    return frozenset(found)


def _cluster(
    left: Operand,
    right: Operand,
    axes: Mapping[Operand, frozenset[int]],
    options: CompileOptions,
    swapped: bool,
    few: bool,
) -> tuple[int, int, Operand, Operand]:
    """The blocks of a cluster, the axis along which they are neighbours, and the operands with the larger one shared,
    or that of few rows, since where these are all there is no other block that needs the same columns.

    Where nothing is asked for, blocks share nothing: on an H200 it made no difference that could be told from noise at
    4096 to 16384 cubed, and cost 2 % at 2048. Blocks that are neighbours along the rows of the grid need the same right
    operand, in the same order, unless which tiles those are depends on the row too: as where every row has a matrix of
    its own.

    Args:
        left, right: the operands.
        axes: of the grid, along which an operand's tiles, or their number, differ.
        options: what is asked for.
        swapped: whether `left` is what the kernel calls the right operand.
        few: whether the tile has fewer rows than an instruction.
    """
    right_is_larger = few or right.panels.nbytes > left.panels.nbytes
    larger, along = (right, int(swapped)) if right_is_larger else (left, int(not swapped))
    blocks = options.num_cta_in_cga or 1
    _require(blocks in CLUSTERS, f"{blocks} blocks to a cluster are asked for; 1, 2, 4 or 8 share operands")
    if blocks == 1 or larger.panels.split(blocks) is None or along in axes[larger]:
        return 1, 0, left, right
    shared = replace(larger, shared=blocks)
    return (blocks, along, left, shared) if right_is_larger else (blocks, along, shared, right)


def _scalar_slice(wanted: Sequence[Value], of: str, definitions: Mapping[Value, Op], loop: For) -> set[Op]:
    """The operations that make the wanted numbers."""
    needed: set[Op] = set()
    pending = list(wanted)
    while pending:
        value = pending.pop()
        op = definitions.get(value)
        if op is None:
            _require(value not in loop.body.arguments[1:], f"{of} depends on the sums")
            continue
        if op in needed:
            continue
        _require(is_scalar_work(op), f"{of} depends on more than numbers: {op.name}")
        needed.add(op)
        pending += [each for each in op.operands if isinstance(each.type, TileType)]
    return needed


def _promoted(rows: int, columns: int, depth: int, groups: int) -> tuple[int, int]:
    """Columns that are multiplied apart from the sums at a time, or turns: as much as a thread has registers for."""
    if rows * columns // (GROUP * groups) <= MOST_TWICE:
        return 0, max(1, TOGETHER // depth)
    tall = rows // (ROWS * groups)
    return max(each for each in range(8, columns + 1, 8) if columns % each == 0 and tall * each // 2 <= MOST_APART), 0


def _buffers(pieces: int) -> list[int]:
    """How many places a warp may have for the pieces of a tile that it stores."""
    return list(range(min(pieces, MOST_BUFFERS), 0, -1))


def _bulk_store(function: Function) -> StoreMut | None:
    """The one store that the copy engine can do: of 16-bit rows, to a tensor that the kernel does not read."""
    stores = [op for op in function.walk() if isinstance(op, StoreMut)]
    if len(stores) != 1 or stores[0] not in function.body.operations:
        return None
    (store,) = stores
    mut = store.x.mut
    read = any(isinstance(op, LoadMut | LoadTile) and op.operands[0] is store.x for op in function.walk())
    rows = mut.tensor.rank == 2 and mut.tensor.unit_axis == 1 and mut.tensor.alignment == 16
    fits = rows and mut.dtype in (f16, bf16) and mut.tile[1] % 16 == 0
    return store if fits and not read else None
