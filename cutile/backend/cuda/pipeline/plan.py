"""How the products of a kernel are made by specialised warps: instructions, buffers, pipelines, roles (sm_90a).

Every product becomes `wgmma`. What the tensor cores read from shared memory is loaded by TMA, in the producer warp; a
left operand that is computed comes from registers. The loads of one product, and of products beside it that share one
of them, arrive together: they are the buffers of one pipeline. Loads in loops run ahead by the pipeline's stages.

    q = load(...)                        pipeline of q, 1 stage
    for k in a..b:
        s = mma(q, load(key, k), 0)      pipeline of key, 2 stages
        acc = mma(f(s), load(value, k), acc)  pipeline of value, 2 stages; f(s) from registers

The producer runs what the indices of its loads and the control around them are computed from, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cutile.backend.cuda.forms import columns_fit, form_of
from cutile.backend.cuda.layout import Layout, group_accumulator, round_up
from cutile.backend.cuda.panels import ALIGNMENT, GROUP, ROWS, STEP_BYTES, Panels
from cutile.backend.cuda.placement import Placement, is_tile
from cutile.backend.cuda.specialised.guards import is_scalar_work
from cutile.backend.cuda.specialised.operand import Operand, loads_of, operand_of
from cutile.backend.cuda.specialised.refusal import Refused, require
from cutile.backend.cuda.target import Architecture
from cutile.backend.interface import CompileOptions
from cutile.dtypes import DTypeLike, bf16, f16
from cutile.ir.constant import Constant
from cutile.ir.control import For, If
from cutile.ir.core import Block, Function, Op, Value
from cutile.ir.types import TileType
from cutile.ops.debug import Assert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.view import StoreView
from cutile.passes.reorder import why_linear

MAX_STAGES = 8
WARP_ROWS = 16
"""Rows of a result that one warp has of every 64."""
STORE_BUFFERS = 2
"""Places of a warp by way of which it stores: it writes one while TMA reads the other."""
REGISTERS = {1: (0, 0), 2: (56, 224), 3: (32, 160)}
"""Registers of a producer and of a consumer thread by consumer warpgroups: 65536 hold them all; 0 leaves the number."""
ROOM = {1: 176, 2: 176, 3: 112}
"""Registers of a consumer thread that accumulators and left operands may fill, by warpgroups: the rest of what it has
is for addresses and for what is computed from them."""


@dataclass(frozen=True)
class Dot:
    """One product.

    Attributes:
        op: the product.
        left: its left operand in shared memory; None where it comes from registers.
        right: its right operand.
        accumulator: the layout of its sums.
        fresh: whether the sums begin at zero with this product.
    """

    op: Mma
    left: Operand | None
    right: Operand
    accumulator: Layout
    fresh: bool

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those in shared memory."""
        return (self.right,) if self.left is None else (self.left, self.right)


@dataclass(frozen=True)
class Group:
    """Loads of one block of the kernel that arrive together.

    Attributes:
        operands: in the order of the loads.
        pipeline: the number of the pipeline.
        within: whether all products that read them are in the same block.
    """

    operands: tuple[Operand, ...]
    pipeline: int
    within: bool


@dataclass(frozen=True)
class Plan:
    """A kernel's products by specialised warps.

    Attributes:
        warpgroups: that consume; the rows of every product are shared among them.
        dots: by operation.
        groups: by the last load of each.
        stages: of each pipeline.
        operands: of each pipeline, one for each buffer.
        needed: the scalar operations that the producer runs.
        nests: loops and branches that both the producer and the consumers run.
        limited: whether waits that last too long end the kernel.
        store: the store that TMA does, by way of shared memory; None where threads do it.
    """

    warpgroups: int
    dots: Mapping[Op, Dot]
    groups: Mapping[Op, Group]
    stages: tuple[int, ...]
    operands: tuple[tuple[Operand, ...], ...]
    needed: frozenset[Op]
    nests: frozenset[Op]
    limited: bool
    store: StoreMut | None

    @property
    def registers(self) -> tuple[int, int]:
        """Of a producer and of a consumer thread; 0 leaves the number alone."""
        return REGISTERS[self.warpgroups]

    @property
    def store_panels(self) -> Panels:
        """What one warp stores at a time, as a tile in panels: some columns of 16 rows of the result."""
        assert self.store is not None
        columns = self.store.value.tile.shape[1]
        return Panels(Panels(columns, 1, 2, k_major=False).span, WARP_ROWS, 2, k_major=False)

    @property
    def store_bytes(self) -> int:
        """Shared memory by way of which results are stored."""
        return 0 if self.store is None else 4 * self.warpgroups * STORE_BUFFERS * self.store_panels.nbytes

    @property
    def threads(self) -> int:
        """Of a block."""
        return GROUP * (self.warpgroups + 1)

    def stage_bytes(self, pipeline: int) -> int:
        """Bytes of one stage of a pipeline."""
        return sum(operand.panels.place_bytes for operand in self.operands[pipeline])

    @property
    def staged(self) -> dict[Op, Operand]:
        """The operand that each load fills."""
        return {operand.load: operand for group in self.groups.values() for operand in group.operands}

    @property
    def passed(self) -> frozenset[Op]:
        """What happens to operands on their way, and needs no instruction."""
        return frozenset(op for dot in self.dots.values() for operand in dot.operands for op in operand.passed)


def plan(function: Function, arch: Architecture, options: CompileOptions) -> Plan | str:
    """The plan for a kernel's products, or the reason why there is none."""
    try:
        return _plan(function, arch, options)
    except Refused as reason:
        return str(reason)


def _plan(function: Function, arch: Architecture, options: CompileOptions) -> Plan:
    require((arch.major, arch.suffix) == (9, "a"), f"{arch.name} has no warpgroup products (sm_90a has)")
    require(not (why := why_linear(function)), f"tile blocks keep their order: {why}")
    stores_views = any(isinstance(op, StoreView) for op in function.walk())
    unsafe = bool(function.facts.get("unsafe", False))
    require(not (unsafe and stores_views), "what is stored by address may be what is loaded ahead")
    require(not any(isinstance(op, Assert) for op in function.walk()), "an assertion stays in the kernel")
    require((options.num_cta_in_cga or 1) == 1, f"{options.num_cta_in_cga} blocks to a cluster are asked for")
    require((options.num_pieces or 1) == 1, f"{options.num_pieces} pieces of a tile block are asked for")
    require(options.occupancy in (None, 1), f"{options.occupancy} blocks to a multiprocessor are asked for")
    products = [op for op in function.walk() if isinstance(op, Mma)]
    warpgroups = _warpgroups(products)
    asked = options.num_worker_warps
    require(asked in (None, 4 * warpgroups), f"{asked} worker warps are asked for, the tiles have {4 * warpgroups}")
    parents = dict(_parents(function.body, ()))
    definitions = {value: op for op in function.walk() for value in op.results}
    dots: dict[Op, Dot] = {op: _dot(op, function, definitions, warpgroups) for op in products}
    _require_layouts(function, dots.values(), warpgroups)
    _require_room(function, dots, warpgroups)
    _require_dots_alone(function, dots.values())
    groups, buffers = _groups(function, dots, parents)
    loads = [operand.load for dot in dots.values() for operand in dot.operands]
    nests = frozenset(op for load in loads for op in parents[load])
    require(all(isinstance(op, For | If) for op in nests), "a load is in a loop that is not counted")
    needed = _needed(loads, nests, definitions)
    store = _tma_store(function, dots)
    first = Plan(warpgroups, dots, groups, (), buffers, needed, nests, options.limit_waits, store)
    looped = [
        any(parents[load] and any(isinstance(op, For) for op in parents[load]) for load in of)
        for of in _loads_of(groups, len(buffers))
    ]
    wanted = [max((operand.load.latency for operand in some), default=0) for some in buffers]
    return replace(first, stages=_stages(first, looped, wanted, arch))


def _warpgroups(products: Sequence[Mma]) -> int:
    """The warpgroups that share the rows of every product."""
    require(bool(products), "the kernel has no product")
    counts: set[int] = set()
    for op in products:
        require(len(op.acc.tile.shape) == 2, "a batch of products in one tile")
        rows = op.acc.tile.shape[0]
        require(rows % ROWS == 0, f"a tile of {rows} rows is no whole number of {ROWS}")
        counts.add({ROWS: 1, 3 * ROWS: 3}.get(rows, 2))
        require(rows % (ROWS * max(counts)) == 0, f"{rows} rows do not divide among {max(counts)} warpgroups")
    require(len(counts) == 1, "the products have different numbers of rows")
    return counts.pop()


def _parents(block: Block, above: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """Each operation, with the loops and branches around it."""
    for op in block.operations:
        yield op, above
        for nested in op.regions:
            yield from _parents(nested, (*above, op))


def _dot(op: Mma, function: Function, definitions: Mapping[Value, Op], warpgroups: int) -> Dot:
    dtype, other, acc = op.a.tile.dtype, op.b.tile.dtype, op.acc.tile.dtype
    rows, columns = op.acc.tile.shape
    form = form_of(dtype, other, acc)
    if form is None:
        raise Refused(f"there is no warpgroup product of {dtype} by {other} that adds up in {acc}")
    require(columns_fit(form, columns), f"{columns} columns: a multiple of 8 up to 256 is wanted")
    require(not form.promoted or op.use_fast_acc, f"sums of {dtype} are added up in f32 on the way")
    depth = op.a.tile.shape[1] * dtype.bits // 8
    require(depth % STEP_BYTES == 0, f"a depth of {op.a.tile.shape[1]} is no whole number of steps")
    everything = set(function.walk())
    once = Counter(dict.fromkeys(definitions, 1))  # several products may read one load; others may not
    right = operand_of(op.b, 0, everything, definitions, once)
    left: Operand | None = None
    try:
        left = operand_of(op.a, 1, everything, definitions, once)
    except Refused:
        computed = definitions.get(op.a)
        require(dtype in (f16, bf16) and not isinstance(computed, LoadTile), "the left operand is loaded by threads")
    for operand in (right, *([left] if left else [])):
        require(form.any_major or operand.panels.k_major, f"an operand of {dtype} lies across K")
    start = definitions.get(op.acc)
    fresh = isinstance(start, Constant) and start.value == 0
    return Dot(op, left, right, group_accumulator((rows, columns), warpgroups), fresh)


def _require_layouts(function: Function, dots: Iterable[Dot], warpgroups: int) -> None:
    """That left operands from registers lie as a product's sums do, which is how `wgmma` takes them."""
    dots = list(dots)
    placement = Placement(function, round_up(4 * warpgroups), [(dot.op, dot.accumulator) for dot in dots])
    for dot in dots:
        if dot.left is None:
            shape = dot.op.a.tile.shape
            wanted = group_accumulator((shape[0], shape[1]), warpgroups)
            require(placement[dot.op.a] == wanted, "the left operand is computed in another layout than sums have")
        require(placement[dot.op.result] == dot.accumulator, "the sums are used in another layout")
    if warpgroups == 3:
        require(
            all(_among_three(placement[value]) for op in function.walk() for value in op.results if is_tile(value)),
            "three warpgroups do not hold every tile alone",
        )


def _among_three(layout: Layout) -> bool:
    """Whether three warpgroups hold every element of a tile: layouts count warps in powers of two."""
    if not any(any(basis) for basis in layout.warp[2:]):
        return True
    missing = (layout.thread_coordinate(0, warp) for warp in range(12, layout.warps))
    return all(any(at >= extent for at, extent in zip(where, layout.shape, strict=True)) for where in missing)


def _require_room(function: Function, dots: Mapping[Op, Dot], warpgroups: int) -> None:
    """That the sums and left operands of the products of a block fit into a thread's registers together."""
    for block in _blocks(function.body):
        here = [dots[op] for op in block.operations if op in dots]
        sums = sum(dot.accumulator.registers for dot in here)
        words = max((dot.op.a.tile.size // (2 * GROUP * warpgroups) for dot in here if dot.left is None), default=0)
        most = ROOM[warpgroups]
        require(sums + words <= most, f"a thread would hold {sums + words} sums and operands, and has room for {most}")


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.operations:
        for nested in op.regions:
            yield from _blocks(nested)


def _require_dots_alone(function: Function, dots: Iterable[Dot]) -> None:
    """That what is loaded into shared memory is read by products alone."""
    dots = list(dots)
    staged = loads_of(operand for dot in dots for operand in dot.operands)
    staged |= {op for dot in dots for operand in dot.operands for op in operand.passed}
    products: list[Op] = [dot.op for dot in dots]
    readers = {*products, *staged}
    made = {value for op in staged for value in op.results}
    for op in function.walk():
        if op not in readers:
            require(
                not any(value in made for value in op.operands), f"an operand of a product is read by {op.name} too"
            )


def _groups(
    function: Function, dots: Mapping[Op, Dot], parents: Mapping[Op, tuple[Op, ...]]
) -> tuple[dict[Op, Group], tuple[tuple[Operand, ...], ...]]:
    """The loads that arrive together, and the buffers of each pipeline.

    Loads of several blocks may take the same pipeline, whose counter runs on from one to the next: those before a loop,
    in it and after it. Not those of a block and of one inside it where a stage of the outer one is held meanwhile, and
    not two of one block, whose products may be under way together.
    """
    home: dict[Op, Block] = {op: block for block in _blocks(function.body) for op in block.operations}
    together: list[tuple[Block, list[Operand], list[Dot]]] = []
    for dot in dots.values():
        for block in dict.fromkeys(home[operand.load] for operand in dot.operands):
            operands = [each for each in dot.operands if home[each.load] is block]
            sharing = (each for each in together if each[0] is block and loads_of(each[1]) & loads_of(operands))
            found = next(sharing, None)
            if found is None:
                together.append((block, operands, [dot]))
            else:
                known = loads_of(found[1])
                found[1].extend(each for each in operands if each.load not in known)
                found[2].append(dot)
    order = {op: place for place, op in enumerate(function.walk())}
    together.sort(key=lambda each: max(order[operand.load] for operand in each[1]))
    buffers: list[tuple[Operand, ...]] = []
    users: list[list[tuple[Block, tuple[Op, ...], bool]]] = []
    groups: dict[Op, Group] = {}
    for block, operands, readers in together:
        operands.sort(key=lambda operand: order[operand.load])
        within = all(home[dot.op] is block for dot in readers)
        user = (block, parents[operands[0].load], within)
        fitting = [n for n, other in enumerate(buffers) if _forms(other) == _forms(operands) and _free(user, users[n])]
        alike = [n for n in fitting if all(a.load.x is b.load.x for a, b in zip(buffers[n], operands, strict=True))]
        if not fitting:
            buffers.append(tuple(operands))
            users.append([])
        number = (alike or fitting or [len(buffers) - 1])[0]
        users[number].append(user)
        groups[operands[-1].load] = Group(tuple(operands), number, within)
    return groups, tuple(buffers)


def _forms(operands: Sequence[Operand]) -> tuple[tuple[Panels, DTypeLike], ...]:
    """How operands lie in shared memory."""
    return tuple((operand.panels, operand.load.x.tensor.dtype) for operand in operands)


_User = tuple[Block, tuple[Op, ...], bool]
"""Of a pipeline: the block of some loads, what is around it, and whether their stage is released in that block's own
products."""


def _free(user: _User, others: Iterable[_User]) -> bool:
    """Whether no stage of others is held while loads of this user arrive."""
    block, above, within = user
    for other, others_above, others_within in others:
        if other is block:
            return False
        if _inside(above, other) and not others_within:
            return False
        if _inside(others_above, block) and not within:
            return False
    return True


def _inside(above: Sequence[Op], block: Block) -> bool:
    """Whether a block stands directly or not in what is around another."""
    return any(op in block.operations for op in above)


def _loads_of(groups: Mapping[Op, Group], count: int) -> list[list[Op]]:
    """The loads that arrive on each pipeline."""
    return [
        [operand.load for group in groups.values() if group.pipeline == number for operand in group.operands]
        for number in range(count)
    ]


def _needed(loads: Iterable[Op], nests: Iterable[Op], definitions: Mapping[Value, Op]) -> frozenset[Op]:
    """The operations that make the numbers which the producer needs.

    Raises:
        Refused: one of them does more than compute with numbers.
    """
    pending: list[Value] = []
    inductions: set[Value] = set()
    for op in nests:
        pending += [op.condition] if isinstance(op, If) else list(op.operands[:3])
        if isinstance(op, For):
            inductions.add(op.induction)
    pending += [value for op in loads if isinstance(op, LoadTile) for value in op.index]
    needed: set[Op] = set()
    inner = {value for op in nests for block in op.regions for value in block.arguments} - inductions
    while pending:
        value = pending.pop()
        require(value not in inner, "an index of a load depends on what a loop carries")
        op = definitions.get(value)
        if op is None or op in needed:
            continue
        require(is_scalar_work(op), f"an index of a load depends on more than numbers: {op.name}")
        needed.add(op)
        pending += [each for each in op.operands if isinstance(each.type, TileType)]
    return frozenset(needed)


def _stages(plan: Plan, looped: Sequence[bool], wanted: Sequence[int], arch: Architecture) -> tuple[int, ...]:
    """The stages of each pipeline: two in loops and one else, and twice as many while shared memory has room.

    A power of two each: the stage of a counter is a division's remainder, between the products.
    """
    room = arch.shared_bytes - ALIGNMENT - plan.store_bytes
    sizes = [plan.stage_bytes(number) for number in range(len(plan.operands))]
    limits = [min(MAX_STAGES, ahead + 1) if ahead else MAX_STAGES for ahead in wanted]
    stages = [min(2 if inside else 1, limit) for inside, limit in zip(looped, limits, strict=True)]
    total = sum(count * size for count, size in zip(stages, sizes, strict=True))
    require(total <= room, f"two stages of every pipeline take {total} bytes of shared memory, there are {room}")
    grows = True
    while grows:
        grows = False
        for number in sorted(range(len(stages)), key=lambda each: stages[each]):
            most = limits[number] if looped[number] else 2
            if 2 * stages[number] <= most and total + stages[number] * sizes[number] <= room:
                total += stages[number] * sizes[number]
                stages[number] *= 2
                grows = True
    return tuple(stages)


def _tma_store(function: Function, dots: Mapping[Op, Dot]) -> StoreMut | None:
    """The one store that TMA can do: of 16-bit rows of a tile like a product's sums, to a tensor that is not read."""
    stores = [op for op in function.walk() if isinstance(op, StoreMut)]
    if len(stores) != 1 or stores[0] not in function.body.operations:
        return None
    (store,) = stores
    mut = store.x.mut
    read = any(isinstance(op, LoadMut | LoadTile) and op.operands[0] is store.x for op in function.walk())
    rows = mut.tensor.rank == 2 and mut.tensor.unit_axis == 1 and mut.tensor.alignment == 16
    alike = any(op.acc.tile.shape == mut.tile for op in dots if isinstance(op, Mma))
    return store if rows and alike and mut.dtype in (f16, bf16) and mut.tile[1] % 16 == 0 and not read else None
