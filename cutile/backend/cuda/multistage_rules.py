"""Plans of loops that load ahead: which loads, how far, and where tiles wait.

    for k in range(a, b, s):                 stage x(a); commit; stage x(a + s); commit
        t = load_tile(x, i, k)               for k in range(a, b, s):
        ...                             -->      wait; stage x(k + 2 s); commit
                                                 t = stage_read(iteration); ...
                                             wait for all

A loop may have any number of loads. The operand of a product goes to shared memory in the layout that the product
reads. Any other tile goes to shared memory in the order of its tensor. If the tile is small or cannot be copied there,
it goes to registers, one iteration ahead. A load is not begun ahead if the kernel may write its tensor, or if its index
depends on a value that the loop carries.

A figure *of a copy* is a kernel's bandwidth as a share of that of a copy of as many bytes (`docs/benchmarks/memory`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cutile.backend.cuda.budget import SYSTEM_BYTES, registers
from cutile.backend.cuda.staged_operands import Load, Products, Side, Sides, is_crowded, products_of
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout import Layout, axis_first, blocked
from cutile.backend.gpu.layout_assignment import LayoutAssignment, is_tile, vector_width
from cutile.backend.gpu.op_facts import DefUse, constant_of, inside, is_scalar_work, makes_numbers, work_of
from cutile.ir import Block, For, If, Op, Value, While
from cutile.ops.grid import TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile, TensorDim
from cutile.ops.view import LoadView

MAX_STAGES_AHEAD = 4
"""Stages of a loop at most, where no load asks for a latency."""
MAX_TILE_WORDS = 16
"""Registers of a thread for one tile that is loaded ahead into registers."""
MAX_WORDS_WITHOUT_MMA = 8
"""Registers of a thread for all such tiles of a loop without products. With more, fewer thread blocks share a
multiprocessor and hide each other's waits (layer_norm of rows of 65536 on an H200: 0.57 of a copy with 16, 0.62 with no
load ahead)."""
REGISTERS_BESIDE_SUMS = 64
"""Registers of a thread that a loop of products takes beside its sums. With fewer, code for two blocks on a
multiprocessor was seen to spill."""
MIN_COPY_BYTES = 4
"""Bytes of the narrowest copy (PTX ISA, `cp.async`)."""
COPY_ALIGNMENT = 16
"""Bytes of the widest copy: a stage's tiles begin at multiples of it."""


@dataclass(frozen=True)
class LoadAhead:
    """A load that is begun ahead.

    Attributes:
        load: the load.
        distance: iterations by which it is ahead. Until the number of stages is known, the author's latency, or 0.
        guards: the branches around it: each `if`, and whether the load is in its first block.
        layout: the elements that each thread copies; where the tile goes to registers, the elements that it holds.
        vector: the axis along which copies are wide, and their elements; None where the tile goes to registers.
        strides: strides of the tile in a stage, in elements.
        nbytes: bytes of the tile in a stage.
        place: bytes from the start of an iteration's stage to this tile.
        read: whether threads read the tile into registers; else only products read it.
        own: whether each thread reads only the elements that it copied itself.
    """

    load: Load
    distance: int
    guards: tuple[tuple[If, bool], ...]
    layout: Layout
    vector: tuple[int, int] | None = None
    strides: tuple[int, ...] = ()
    nbytes: int = 0
    place: int = 0
    read: bool = True
    own: bool = True

    @property
    def words(self) -> int:
        """Registers of a thread for the tile."""
        return -(-self.layout.registers * self.load.x.tensor.dtype.bits // 32)

    @property
    def fits_registers(self) -> bool:
        """Whether the tile may go to registers: it takes few, and is under no branch."""
        return self.words <= MAX_TILE_WORDS and not self.guards


@dataclass(frozen=True)
class MultistagePlan:
    """A loop that loads ahead.

    Attributes:
        loads: the loads that are begun ahead.
        products: the products that read stages, each with its two operands.
        passed: operations between loads and such products, which need no instruction of their own.
        stages: the number of stages; 0 where all loads go to registers.
        stage_bytes: bytes of one stage: of all tiles of one iteration.
        nbytes: bytes of all stages, and of the operands that are written from registers.
        meets: where threads meet at a barrier in each iteration, to see the copies of others: nowhere (False), at its
            top (True), or after the operands that are written for its first product (the product).
        blocks: thread blocks on a multiprocessor that the shared memory is planned for; 0 leaves it open.
    """

    loads: dict[Load, LoadAhead]
    products: dict[Mma, Sides] = field(default_factory=dict[Mma, Sides])
    passed: frozenset[Op] = frozenset()
    stages: int = 0
    stage_bytes: int = 0
    nbytes: int = 0
    meets: Mma | bool = False
    blocks: int = 0

    def stage_of(self, of: LoadAhead | Side) -> tuple[int, int, int]:
        """The stages of a load or an operand: first byte, number, bytes of each."""
        if of.load is None:  # operands from registers lie after the stages of loads
            return self.stages * self.stage_bytes + of.place, of.copies, of.stage.bytes
        return self.loads[of.load].place, self.stages, self.stage_bytes

    @property
    def pending(self) -> int:
        """Groups of copies that may be under way while an iteration reads its own."""
        return min(ahead.distance for ahead in self.loads.values() if ahead.vector is not None) - 1


@dataclass
class Loop:
    """A loop that may load ahead, with its surroundings.

    Attributes:
        op: the loop.
        layouts: the layouts of the kernel's tiles.
        definitions: the operation that makes each value of the kernel.
        stable: tells whether nothing writes to a tensor while the kernel runs.
        arch: the architecture that the kernel is compiled for.
        max_stages: stages at most.
        pads: whether tiles with another padding than zeros are loaded ahead, and padded when they are read.
    """

    op: For
    layouts: LayoutAssignment
    definitions: Mapping[Value, Op]
    stable: Callable[[Value], bool]
    arch: Architecture
    max_stages: int = MAX_STAGES_AHEAD
    pads: bool = False

    @cached_property
    def operations(self) -> list[Op]:
        """The operations of the loop, those in its branches too."""
        return inside(self.op)

    @cached_property
    def inside(self) -> DefUse:
        """What the loop's operations define and read."""
        return DefUse(self.op.body)

    @property
    def is_whole(self) -> bool:
        """Whether the loop goes over all tiles of a tensor.

        Copies for iterations past its end then lie past the tensor's edge, and read nothing.
        """
        work = work_of([self.op.stop], self.definitions)
        sized = any(isinstance(op, TensorDim) for op in work) and all(map(is_scalar_work, work))
        return sized and self.counts

    def is_common(self, load: Load) -> bool:
        """Whether all tile blocks load the same tiles."""
        return not any(isinstance(op, TileBlockId) for op in work_of(load.index, self.definitions))

    @property
    def counts(self) -> bool:
        """Whether the loop's variable is 0, 1, 2, ..."""
        return [constant_of(value, self.definitions) for value in (self.op.start, self.op.step)] == [0, 1]

    def recomputable(self, value: Value) -> bool:
        """Whether a number can be computed for another iteration.

        It can if it depends on no value that the loop carries.
        """
        work = work_of([value], self.inside.definitions)
        read = {value, *(operand for op in work for operand in op.operands)}
        return all(map(makes_numbers, work)) and not read.intersection(self.op.body.arguments[1:])

    def candidates(self, block: Block, guards: tuple[tuple[If, bool], ...] = ()) -> Iterator[tuple[Load, LoadAhead]]:
        """The loads of a block that can be begun ahead, in the order of the kernel.

        Args:
            block: the loop's body, or the block of a branch in it.
            guards: the branches around the block.
        """
        for op in block.operations:
            if isinstance(op, If) and self.recomputable(op.condition):
                yield from self.candidates(op.then, (*guards, (op, True)))
                yield from self.candidates(op.orelse, (*guards, (op, False)))
            elif isinstance(op, LoadTile | LoadView) and is_tile(op.result) and self.stable(op.x):
                is_computable = op.x not in self.inside.definitions and all(map(self.recomputable, op.index))
                if is_computable and (self.pads or not is_padded(op)):
                    yield op, LoadAhead(op, op.latency, guards, self.layouts[op.result])


def is_padded(load: Load) -> bool:
    """Whether a load pads its tile with something else than zeros."""
    return isinstance(load, LoadView) and load.padding not in ("zero", "none")


def plan_multistage(loop: Loop) -> MultistagePlan | None:
    """The plan of a loop; None where it loads nothing ahead.

    The rules stand in the order of their tests.
    """
    if any(isinstance(op, For | While) for op in loop.operations):
        return None
    candidates = dict(loop.candidates(loop.op.body))
    products = products_of(loop, candidates)
    stages = {load: _to_stages(loop, ahead, products) for load, ahead in candidates.items()}
    staged = {load: ahead for load, ahead in stages.items() if ahead is not None}
    operands = [(load, ahead) for load, ahead in staged.items() if products.side_of(load) is not None]
    # If the stages of all loads do not fit, only loads of products have stages, and of these fewer and fewer.
    fewer = (dict(operands[:count]) for count in range(len(operands), 0, -1))
    plans = (_fitting_plan(loop, products, loads) for loads in (staged, *fewer))
    plan = next((plan for plan in plans if plan is not None), MultistagePlan({}))
    others = [ahead for load, ahead in candidates.items() if ahead.fits_registers and load not in plan.loads]
    if not plan.products and sum(ahead.words for ahead in others) > MAX_WORDS_WITHOUT_MMA:
        others = []
    loads = {ahead.load: replace(ahead, distance=1) for ahead in others} | plan.loads
    return replace(plan, loads={load: loads[load] for load in candidates if load in loads}) if loads else None


def _to_stages(loop: Loop, ahead: LoadAhead, products: Products) -> LoadAhead | None:
    """A load with its layout in a stage.

    None where it cannot go to stages, or where registers are better for it.
    """
    load, layout, side = ahead.load, ahead.layout, products.side_of(ahead.load)
    tensor, shape = load.x.tensor, load.shape
    size = tensor.dtype.bits // 8
    widest = vector_width(tensor, shape, load.steps if isinstance(load, LoadView) else None)
    axis, width = widest or (tensor.unit_axis, 1)
    if axis is None or width * size < MIN_COPY_BYTES:
        return None
    # If several threads hold the same elements (`repeated`), each loads them to registers for itself: in a stage they
    # would have to wait for one another. Tiles that all tile blocks load come from the cache, whose latency one
    # iteration in registers hides. Stages are for tiles that come from memory.
    repeated = side is None and (layout.free_lanes or layout.free_warps)
    hidden = repeated or (side is None and loop.is_common(load))
    if (repeated and not products.sides) or (hidden and ahead.fits_registers):
        return None
    order = axis_first(len(shape), axis)
    if repeated or layout.vector(axis) < width:
        # Threads copy other elements than they will hold, so that copies are as wide as memory allows.
        layout = blocked(shape, loop.layouts.warps, width, order)
    strides, nbytes = [0] * len(shape), shape[axis]
    strides[axis] = 1
    for other in order[1:]:
        if shape[other] > 1:
            strides[other] = nbytes if side is None else side.stage.pitch
        nbytes *= shape[other]
    nbytes = -(-nbytes * size // COPY_ALIGNMENT) * COPY_ALIGNMENT if side is None else side.stage.bytes
    own = layout == ahead.layout
    staged = replace(ahead, layout=layout, vector=(axis, width), strides=tuple(strides), nbytes=nbytes, own=own)
    # Copies put zeros past the edges. Another padding is added in registers, by threads that read only their own
    # copies.
    return staged if own or not is_padded(load) else None


def _fitting_plan(loop: Loop, products: Products, staged: Mapping[Load, LoadAhead]) -> MultistagePlan | None:
    """The plan of these loads, with as many stages as fit; None where not even two do."""
    products = products.only(staged)
    loads: dict[Load, LoadAhead] = {}
    stage_bytes = 0
    for load, ahead in staged.items():
        loads[load] = replace(ahead, place=stage_bytes, read=products.is_read(load.result))
        stage_bytes += ahead.nbytes
    # One stage is read while loads that run `n` iterations ahead fill `n` others.
    most = min(loop.max_stages, 1 + max((ahead.distance or MAX_STAGES_AHEAD for ahead in staged.values()), default=0))
    best = _meeting(loop, products, loads)
    for room, least, blocks in _rooms(loop, products) if loads else ():
        # To meet at a barrier of its own, at the top, takes less memory than to meet at the first product
        # (`_placed_sides`): it is the second choice.
        for meets in (best, True) if isinstance(best, Mma) else (best,):
            sides, written = _placed_sides(products, meets)
            stages = min(most, (room - written) // stage_bytes)
            if stages < max(2, min(most, least)):
                continue
            loads_ahead = {
                op: replace(ahead, distance=min(ahead.distance or stages, stages - 1)) for op, ahead in loads.items()
            }
            nbytes = stages * stage_bytes + written
            return MultistagePlan(loads_ahead, sides, products.passed, stages, stage_bytes, nbytes, meets, blocks)
    return None


def _rooms(loop: Loop, products: Products) -> Iterator[tuple[int, int, int]]:
    """The choices of shared memory for a loop, the best first.

    Each is a triple: the bytes; the fewest stages that make the choice worthwhile; the thread blocks that then share a
    multiprocessor, 0 to leave them open.
    """
    shared = loop.arch.shared_bytes
    # Several thread blocks hide each other's waits. But fewer than three stages hide little of a block's own waits:
    # only a block that is alone may have two.
    if not products.sides:
        yield from ((shared // blocks - SYSTEM_BYTES, 3 if blocks > 1 else 2, 0) for blocks in (4, 2, 1))
        return
    every = [op for op in loop.operations if isinstance(op, Mma)]
    results = {op.result for op in every}
    # A product that adds to another one's result uses the same registers.
    first = [op for op in every if op.acc not in results]
    words = sum(loop.layouts.accumulator(op).registers * op.acc.tile.dtype.bits // 32 for op in first)
    crowded = any(is_crowded(op, (x.stage.swap, y.stage.swap), loop.arch) for op, (x, y) in products.sides.items())
    if words <= registers(loop.arch, 32 * loop.layouts.warps, 2) - REGISTERS_BESIDE_SUMS and not crowded:
        yield shared // 2 - 2 * SYSTEM_BYTES, 2, 2
    yield shared - SYSTEM_BYTES, 2, 1


def _meeting(loop: Loop, products: Products, loads: Mapping[Load, LoadAhead]) -> Mma | bool:
    """Where threads meet in each iteration (`MultistagePlan.meets`).

    Operands that are written for the first product need a barrier anyway, at which threads then meet. False where no
    thread reads elements that another one copied.
    """

    def reads_others(op: Op) -> bool:
        """Whether threads read elements that others have copied."""
        crossing = isinstance(op, LoadTile | LoadView) and op in loads and loads[op].read and not loads[op].own
        return crossing or op in products.sides

    for op in loop.op.body.operations:  # the first operation that reads elements of other threads decides
        if isinstance(op, Mma) and op in products.sides:
            return op if any(side.written for side in products.sides[op]) else True
        if reads_others(op) or any(map(reads_others, inside(op))):
            return True
    return False


def _placed_sides(products: Products, meets: Mma | bool) -> tuple[dict[Mma, Sides], int]:
    """The products, with places for operands from registers, and the places' bytes.

    Operands that are written ahead of the threads' meeting have two stages: other threads may still read the operands
    of the iteration before.
    """
    nbytes = 0
    sides: dict[Mma, Sides] = {}
    for op, pair in products.sides.items():
        placed: list[Side] = []
        for side in pair:
            copies = 2 if op is meets and side.written else 1
            placed.append(replace(side, place=nbytes, copies=copies))
            nbytes += 0 if side.load else copies * side.stage.bytes
        sides[op] = (placed[0], placed[1])
    return sides, nbytes
