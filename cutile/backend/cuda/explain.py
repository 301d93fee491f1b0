"""The plan of a lowered kernel in the words of its field.

The plan is rows of a heading and a text, read from operations and facts; nothing is decided here. `plan` says what the
lowered kernel does, which instruction makes each product, and which plans were refused, with the remedies for a
kernel's author. `explain` adds the toolchain's report: registers, spills, and the thread blocks that fit.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.analysis.structure import late_loads
from cutile.backend.cuda.budget import SYSTEM_BYTES
from cutile.backend.cuda.long_rows import CLUSTERS_SINCE
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.ops.memory import (
    ConvertLayout,
    StagedMma,
    StageTile,
    Store,
    StoreCompacted,
    StoreSubtile,
    TmaLoad,
    TmaStore,
)
from cutile.backend.cuda.ops.mma import Dot, SimtMma
from cutile.backend.cuda.ops.pipeline import BufferType, Pipeline, PipelineType
from cutile.backend.cuda.ops.roles import FirstTile, KSplits, NextTile, Roles, SetMaxRegisters, TileIndex
from cutile.backend.cuda.smem_layout import STEP_BYTES
from cutile.backend.cuda.smem_sizes import F64_STEP, tensor_cores
from cutile.backend.cuda.target import RESIDENT_LIMITS, Architecture, Lack, Refusal, architecture
from cutile.backend.cuda.wgmma_instructions import MMA_ATOMS
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.backend.interface import NOT_USED, CompileOptions, Row, Target, unused_rows
from cutile.dtypes import DTypeLike, f16, f32, f64, tf32, u64
from cutile.ir import UNUSED, For, Function, MutType, Op, TensorType, TileType, Type, Value
from cutile.ops.debug import Assert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress
from cutile.ops.view import LoadView, StoreView
from cutile.passes.fast_math import FACT

_PLANS = {
    "specialised warps": "warp specialisation for a single product",
    "pipelines": "warp specialisation",
}

REMEDIES = {
    Lack.CLUSTER: "Leave out num_cta_in_cga",
    Lack.OCCUPANCY: "Leave out occupancy",
    Lack.PIECES: "Leave out num_pieces",
    Lack.WARPS: "Leave out num_worker_warps",
    Lack.ARCHITECTURE: "wgmma and TMA need sm_90a",
    Lack.ALIGNED_ROWS: "Pad the tensor's rows to a multiple of 16 bytes",
    Lack.ANY_ORDER: "Leave out atomics, prints and ordered accesses",
    Lack.BULK_LOADS: "Leave out the hint",
    Lack.COLUMNS: "Use as many columns",
    Lack.CONTIGUOUS_AXIS: "Pass a tensor with a stride of 1",
    Lack.DTYPES: "Use operands of f16, bf16, tf32 or 8 bits",
    Lack.K_MAJOR: "Store that operand with K contiguous",
    Lack.LOADS_IN_LOOP: "Load operands in the loop, and compute on the product instead",
    Lack.NO_ADDRESSES: "Use partitions in place of pointers",
    Lack.NO_ASSERTIONS: "Make the index provable, or state it in preconditions",
    Lack.NUMBERS: "Compute indices from numbers alone",
    Lack.ONE_PRODUCT: "Clusters, split-K and a delayed epilogue are for kernels of one product",
    Lack.ONE_USE: "Load the operand once for each use",
    Lack.ONLY_SUMS: "Move that behind the loop",
    Lack.READ_ONLY: "Read from another tensor than the one that is written",
    Lack.REGISTERS: "Use a smaller tile",
    Lack.ROWS: "Use a tile with a multiple of 64 rows",
    Lack.SHARED_MEMORY: "Use smaller tiles, or a smaller step along K",
    Lack.STEPS_OF_K: "Use a step along K that is a multiple of 32 bytes",
    Lack.TF32: "Convert the operands to ct.tf32, f16 or bf16",
    Lack.TWO_AXES: "Reshape tiles of one batch to two axes",
}
"""What a kernel's author can change, by the kind of the refusal. There is none for refusals of the kind `ELSE`."""


def in_words(plan: str) -> str:
    """A plan's name in the words of its field."""
    return _PLANS.get(plan, plan)


FMA = "FMA f32 on the CUDA cores"


def _wgmma(left: DTypeLike, right: DTypeLike, sums: DTypeLike, columns: int) -> str:
    """An instruction of warpgroups (PTX ISA, `wgmma.mma_async`)."""
    names = " x ".join(dict.fromkeys((MMA_ATOMS[left].name, MMA_ATOMS[right].name)))
    return f"wgmma m64n{columns}k{STEP_BYTES * 8 // left.bits} {names} -> {sums}"


def _mma_sync(left: DTypeLike, right: DTypeLike, sums: DTypeLike, arch: Architecture, depth: int) -> str:
    """An instruction of one warp (PTX ISA, `mma.sync`)."""
    capability = (arch.major, arch.minor)
    if left is f64:
        staged = -(-depth // F64_STEP) * F64_STEP  # zeros fill the last step
        # The greatest depth that divides the tile's (PTX ISA: m16n8k4, k8 and k16 of f64 are from sm_90 on).
        k = next(k for k in (16, 8, 4) if staged % k == 0)
        return f"mma.sync m16n8k{k} f64 -> f64" if capability >= (9, 0) else "mma.sync m8n8k4 f64 -> f64"
    # Before sm_89 there is no product of 8-bit floats, and on sm_90 none by single warps. They are converted to f16.
    as_f16 = left.is_float8 and (capability < (8, 9) or arch.major == 9)
    dtypes = [f16] if as_f16 else list(dict.fromkeys((left, right)))
    names = " x ".join(each.name for each in dtypes)
    note = f", converted from {left}" if as_f16 else ""
    return f"mma.sync m16n8k{STEP_BYTES * 8 // dtypes[0].bits} {names} -> {sums}{note}"


def _dot(op: Dot, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    columns, notes = layout.cover[1], list[str]()  # of the instruction, which may reach beyond the tile's edge
    if op.promote_columns:
        notes.append(f"added up in f32, {op.promote_columns} columns at a time")
    # `a_from_registers`: the operand lies across K in shared memory. `from_registers`: it is in registers already.
    if op.a_from_registers:
        notes.append("the left operand transposed by way of registers")
    if op.from_registers:
        notes.append("left operand in registers")
    return _wgmma(op.left_dtype, op.right_dtype, op.acc_dtype, op.promote_columns or columns), notes


def _outer(op: SimtMma, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    return FMA, ()


def _staged(op: StagedMma, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    if not tensor_cores(op.dtype):
        return FMA, ()
    dtype = tf32 if op.rounds else op.dtype
    notes = ["f32 rounded to tf32"] if op.rounds else []
    return _mma_sync(dtype, tf32 if op.rounds else op.other, op.acc.tile.dtype, arch, op.depth), notes


def _plain(op: Mma, layout: Layout, arch: Architecture) -> tuple[str, Sequence[str]]:
    left, right = op.a.tile, op.b.tile
    notes = ["not pipelined: each step waits for its loads"]
    if not tensor_cores(left.dtype):
        return FMA, notes
    return _mma_sync(left.dtype, right.dtype, op.acc.tile.dtype, arch, left.shape[-1]), notes


_INSTRUCTIONS: dict[type[Op], Callable[[Any, Layout, Architecture], tuple[str, Sequence[str]]]] = {
    Dot: _dot,
    SimtMma: _outer,
    StagedMma: _staged,
    Mma: _plain,
}


def products(function: Function, arch: Architecture) -> list[str]:
    """A line for each product: its result, its instruction, and how operands reach it.

    Equal lines are one line: a rotated loop has a copy of each product.
    """
    layouts = layouts_of(function)
    names = {value.name for op in function.walk() for value in (*op.operands, *op.results)}
    lines: dict[str, None] = {}
    for op in function.walk():
        describe = _INSTRUCTIONS.get(type(op))
        if describe is None:
            continue
        instruction, notes = describe(op, layouts[op.attributes["layout"]], arch)
        # In a function that was read from its text, a copy of `acc` is named `acc_1` (`ir/text.py`).
        full_name = op.result.name or next((x.name for x in op.operands if is_tile(x) and x.name), "product")
        stem = re.sub(r"_\d+$", "", full_name)
        name = stem if stem in names else full_name
        place = f" (line {op.location.line})" if op.location else ""
        lines["; ".join([f"{name}{place}: {instruction}", *notes])] = None
    return list(lines)


def is_f32_by_fma(function: Function) -> bool:
    """Whether an f32 product goes by FMA where tf32 would take the tensor cores."""
    return any(
        isinstance(op, SimtMma)  # of f32 alone
        or (isinstance(op, StagedMma) and op.dtype is f32 and not op.rounds)
        or (isinstance(op, Mma) and op.a.tile.dtype is f32)
        for op in function.walk()
    )


WIDEST = 16
"""Bytes of the widest access of a thread."""
LOADS = (LoadTile, LoadView, LoadPointer)
STORES = (Store, StoreCompacted, StoreSubtile, StoreView, StorePointer)


def plan(function: Function, arch: Architecture) -> tuple[Row, ...]:
    """Rows of a lowered kernel, without the toolchain's report, which `explain` adds."""
    ops = list(function.walk())
    loads, stores = _accesses(ops, LOADS), _accesses(ops, STORES)
    rows: list[Row] = [("products", line) for line in products(function, arch)]
    rows += [("pipelines", line) for line in _pipelines(ops)]
    rows.append(("warps", _warps(function, ops)))
    rows.append(("schedule", _schedule(function, ops)))
    rows += [("loads", line) for line in loads]
    rows += [("epilogue" if rows[0][0] == "products" else "stores", line) for line in [*_bulk_stores(ops), *stores]]
    if relaxed := function.facts.get(FACT):
        rows.append(("fast math", "; ".join(relaxed)))
    reasons = [*_refused(function), *_narrow(ops)]
    # A refusal that names tf32 has the same remedy.
    if is_f32_by_fma(function) and not any("tf32" in each for each in reasons):
        reasons.append("products of f32 keep off the tensor cores, which would round them: convert operands to ct.tf32")
    rows += [("why not better", line) for line in dict.fromkeys(reasons)]
    return (*rows, *unused_rows(function.facts))


# Options and hints that the plan does without.


def unused(function: Function, lowered: Function, options: CompileOptions, arch: Architecture) -> Iterator[str]:
    """A line with the reason for each option and hint that a kernel does without."""
    yield from function.facts.get(UNUSED, ())
    ahead = _ahead(lowered)
    yield from late_loads(function, lambda op: ahead.get(op.x.name, (0, "since no loop takes its tiles from stages")))
    ops = list(lowered.walk())
    yield from _other_cluster(function, lowered, options.num_cta_in_cga, arch)
    facts, splits = lowered.facts, next((op for op in ops if isinstance(op, KSplits)), None)
    warps, pieces = options.num_worker_warps, options.num_pieces or 1
    # With ping-pong the option counts the warps of one tile block, and a thread block has two at a time. Other plans
    # with warp specialisation (the fact `computing`) are refused where the option is not their number of warps.
    if warps not in (None, facts["warps"], facts["warps"] // 2 if "computing" in facts else None):
        most = arch.max_threads // 32
        why = f"a thread block has {most} at most" if warps > most else "the number is a power of two"
        yield f"num_worker_warps={warps}: {facts['warps']} are taken, since {why}"
    if splits is None and pieces > 1:
        why = _divided(facts) or _reason(facts, Lack.PIECES)
        yield f"num_pieces={pieces}: {why or 'this plan divides the iterations of no product'}"
    elif splits is not None and splits.most < pieces:
        yield f"num_pieces={pieces}: up to {splits.most} are taken, the most that there are"
    if options.limit_waits and not any(op.attributes.get("limited") for op in ops):
        yield "limit_waits=True: no warp waits for warps of another role"


def _ahead(lowered: Function) -> dict[str | None, tuple[int, str]]:
    """By tensor, the iterations by which its loads are begun ahead, and why no more.

    All stages but the one that is read are ahead.
    """
    ahead: dict[str | None, tuple[int, str]] = {}
    for op in lowered.walk():
        if isinstance(op, TmaLoad):
            assert isinstance(op.pipeline.type, PipelineType)
            ahead[op.x.name] = op.pipeline.type.stages - 1, "as far as stages fit"
        elif isinstance(op, StageTile) and not op.held:
            _, stages, _ = op.stage
            ahead[op.x.name] = stages - 1, "as far as stages fit"
        elif isinstance(op, For):  # the next iteration's tile is what this one yields
            carried = set(op.body.terminator.operands)
            carried |= {
                each.x for each in op.body.operations if isinstance(each, ConvertLayout) and each.result in carried
            }
            for load in op.body.operations:
                if isinstance(load, LoadTile | LoadView) and load.result in carried:
                    # If the tensor has stages as well, these count.
                    ahead.setdefault(load.x.name, (1, "since its tile waits in registers"))
    return ahead


def _other_cluster(function: Function, lowered: Function, requested: int | None, arch: Architecture) -> Iterator[str]:
    """A line where thread blocks are in another cluster than the author asks for."""
    ops = list(lowered.walk())
    specialised = any(isinstance(op, Roles) for op in ops)
    blocks = int(lowered.facts.get("cluster", 1))
    if requested in (None, blocks):
        return
    why = _reason(lowered.facts, Lack.CLUSTER) or "the kernel has nothing that thread blocks would share"
    if blocks > 1:
        splits = any(isinstance(op, KSplits) for op in ops)
        why = f"the pieces of a product are a cluster of {blocks}" if splits else f"clusters of {blocks} are taken"
    elif arch.major < CLUSTERS_SINCE:
        why = f"{arch.name} has no clusters"
    elif specialised and any(isinstance(op, Assert | StoreView) for op in function.walk()):
        why = "its assertions, and its stores at any place, have to be a thread block's own"
    elif specialised:
        why = "neighbouring tile blocks load no tile in common that so many thread blocks can divide"
    yield f"num_cta_in_cga={requested}: {why}"


def _reason(facts: Mapping[str, Any], kind: Lack) -> str:
    """The reason of the first refusal of a kind; empty without one."""
    return next((reason.detail for _, reason in _refusals(facts) if reason.kind is kind), "")


def _refusals(facts: Mapping[str, Any]) -> list[tuple[str, Refusal]]:
    """The better plans that were refused, from the top of the ladder, and why.

    A function that was read from its text has plain text for the reasons.
    """
    refused: Sequence[tuple[str, str]] = facts.get("refused", ())
    return [(name, Refusal.of(reason)) for name, reason in refused]


def kilobytes(nbytes: int) -> str:
    """Bytes as people count shared memory.

    Example:
        >>> kilobytes(49152), kilobytes(1000)
        ('48 KiB', '1000 bytes')
    """
    if nbytes < 1024:
        return f"{nbytes} bytes"
    return f"{nbytes / 1024:.1f}".removesuffix(".0") + " KiB"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _pipelines(ops: Sequence[Op]) -> Iterator[str]:
    """A line for each pipeline: its tensors, its stages and their bytes."""
    fills: dict[Value, dict[str, None]] = {}
    for op in ops:
        if isinstance(op, TmaLoad):
            fills.setdefault(op.pipeline, {})[op.x.name] = None
    for op in ops:
        if isinstance(op, Pipeline) and op.buffers:  # a pipeline without buffers hands over tile numbers or verdicts
            nbytes = 0
            for buffer in op.buffers:
                assert isinstance(buffer.type, BufferType)
                size = buffer.type.dtype.bits // 8
                for extent in buffer.type.shape:
                    size *= extent
                nbytes += size
            names = ", ".join(fills.get(op.result, {})) or "operands"
            yield f"{names}: {_counted(op.stages, 'stage')} of {kilobytes(nbytes)}, filled by TMA"
    # Tiles of one iteration lie in one stage, whose memory begins at `offset`: they share a line.
    places: dict[tuple[Any, ...], dict[str, None]] = {}
    for op in ops:
        if isinstance(op, StageTile):
            place = op.attributes["offset"], *op.stage[1:], op.held, op.copies
            places.setdefault(place, {})[op.x.name] = None
    for (_, stages, nbytes, is_held, copies), names in places.items():
        if is_held:
            memory = f"{kilobytes(stages * nbytes)} in shared memory, read in {_counted(stages, 'slice')}"
            instruction = "cp.async" if not copies else "one copy (TMA)" if copies == 1 else f"{copies} copies (TMA)"
            yield f"{', '.join(names)}: held from pass to pass, {memory}, filled by {instruction}"
        else:
            yield f"{', '.join(names)}: {_counted(stages, 'stage')} of {kilobytes(nbytes)}, filled by cp.async"


def _warps(function: Function, ops: Sequence[Op]) -> str:
    """The roles of warps."""
    facts = function.facts
    threads = int(facts["threads"])
    roles = next((op for op in ops if isinstance(op, Roles)), None)
    if roles is None:
        return f"{_counted(int(facts['warps']), 'warp')}, all alike: {threads} threads"
    counts = [
        next((f", {op.count} registers" for op in block.walk() if isinstance(op, SetMaxRegisters)), "")
        for block in (roles.producer, roles.consumer)
    ]
    is_pingpong = any(isinstance(op, FirstTile) and op.pingpong > 1 for op in ops)
    pingpong = ", each with tiles of its own (ping-pong)" if is_pingpong else ""
    return (
        f"a producer warpgroup (one thread issues TMA{counts[0]}), "
        f"{_counted(roles.warpgroups, 'consumer warpgroup')} (products and epilogue{counts[1]}){pingpong}: "
        f"{threads} threads"
    )


def _schedule(function: Function, ops: Sequence[Op]) -> str:
    """The assignment of tiles to thread blocks."""
    facts = function.facts
    if facts.get("persistent"):
        order = next((op for op in ops if isinstance(op, TileIndex)), None)
        group = f", {order.group} rows of tiles at a time" if order is not None and order.group > 1 else ""
        parts = [f"persistent: as many thread blocks as fit take tile after tile{group}"]
        if any(isinstance(op, NextTile) for op in ops):
            first = ", the longest first" if any(isinstance(op, TileIndex) and op.backwards for op in ops) else ""
            parts.append(f"tiles differ, and are taken one by one as thread blocks come to them{first}")
    elif "blocks_per_tile" in facts:
        blocks = int(facts["blocks_per_tile"])
        parts = [
            f"a cluster of {blocks} thread blocks for each tile: each has a slice of its rows, and what they reduce "
            "meets in distributed shared memory"
        ]
    else:
        parts = ["one thread block for each tile"]
    cluster = int(facts.get("cluster", 1))
    pieces = next((op for op in ops if isinstance(op, KSplits)), None)
    if pieces is not None:
        where = "shared memory of a cluster" if cluster > 1 else "a workspace"
        parts.append(f"split-K: up to {pieces.most} thread blocks to a tile, whose sums meet in {where}")
    elif "division" in facts:
        _, divisions = facts["division"]  # the arguments of `SplitKVariants`
        most = max(tiles for tiles, *_ in divisions)
        parts.append(f"split-K in launches of up to {most} tiles")
    if cluster > 1 and pieces is None and "blocks_per_tile" not in facts:
        parts.append(f"clusters of {cluster} share operands (TMA multicast)")
    if "early" in facts:
        where = "" if facts["early"] == "always" else "in graphs "
        parts.append(f"{where}starts before the kernel ahead has ended (programmatic dependent launch)")
    return "; ".join(parts)


def _bulk_stores(ops: Sequence[Op]) -> Iterator[str]:
    """A line for each tensor that TMA stores."""
    stores: dict[tuple[str, str], tuple[int, bool]] = {}
    for op in ops:
        if isinstance(op, TmaStore):
            which = op.x.name, "reductions" if op.adds else "stores"
            span, packed = stores.get(which, (0, False))
            stores[which] = max(span, int(op.attributes.get("span", 0))), packed or op.packed
    for (name, how), (span, packed) in stores.items():
        columns = f", {span} columns at a time" if span else ""
        after = ", during the next tile's products" if packed else ""
        yield f"{name} by TMA {how}{columns}{after}"


def _accesses(ops: Sequence[Op], kinds: tuple[type[Op], ...]) -> list[str]:
    """Accesses by threads: a line for each width."""
    names: dict[str, dict[str, None]] = {}
    makers = {result: op for op in ops for result in op.results}
    for op in ops:
        if isinstance(op, kinds) and isinstance(op, LoadPointer | StorePointer):
            tile, width = (op.pad if isinstance(op, LoadPointer) else op.value).tile, op.attributes.get("width", 1)
            wide = f"{width * tile.dtype.bits // 8} bytes a thread at once" if width > 1 else "element by element"
            names.setdefault(f"{wide}, by address", {})[_tensor_at(op.pointers, makers)] = None
        elif isinstance(op, kinds) and isinstance(op, StoreCompacted):
            # The store has an address and no tensor. Its elements are the selected ones (`compaction.py`).
            names.setdefault("put side by side in shared memory, neighbours by neighbouring lanes", {})["chosen"] = None
        elif isinstance(op, kinds) and not (tile := _accessed(op)).is_scalar:
            _, width = op.attributes.get("vector") or (0, 1)  # the axis, and elements along it
            nbytes = tile.dtype.bits // 8 * width
            names.setdefault(f"{_counted(nbytes, 'byte')} a thread at once", {})[op.operands[0].name or "view"] = None
    return [f"{', '.join(each)}: {width}" for width, each in names.items()]


def _tensor_at(addresses: Value, makers: Mapping[Value, Op]) -> str:
    """The tensor in which addresses lie; "pointers" where a kernel was given them."""
    names: dict[str, None] = {}
    values = [addresses]
    for value in values:
        op = makers.get(value)
        if isinstance(op, TensorAddress):
            names[op.x.name or "view"] = None
        elif op is not None:  # an address is the sum of a tensor's own (u64) and an offset (i64): the u64 leads on
            tiles = (operand for operand in op.operands if isinstance(operand.type, TileType) and operand not in values)
            values += [tile for tile in tiles if tile.tile.dtype is u64]
    return ", ".join(names) or "pointers"


def _accessed(op: Op) -> TileType:
    """The tile that is loaded or stored."""
    return op.results[0].tile if op.results else op.operands[1].tile


def _narrow(ops: Sequence[Op]) -> Iterator[str]:
    """Tensors whose elements are accessed one by one, and why."""
    names: dict[str, dict[str, None]] = {}
    for op in ops:
        of_tensor = isinstance(op, LOADS + STORES) and not isinstance(op, LoadPointer | StorePointer | StoreCompacted)
        if of_tensor and op.attributes.get("vector") is None and _accessed(op).size > 1:
            tensor = op.operands[0]
            if why := _why_narrow(tensor.type):
                names.setdefault(why, {})[tensor.name or "view"] = None
    for why, each in names.items():
        yield f"{', '.join(each)}: {why}"


def _why_narrow(kind: Type) -> str:
    """The tensor's reason for narrow accesses; empty where the tile is the reason."""
    tensor = kind.tensor if isinstance(kind, MutType) else kind
    if not isinstance(tensor, TensorType) or not tensor.shape:
        return ""
    if 1 not in tensor.strides:
        return "no axis is contiguous, so that each element is an access: pass a tensor with a stride of 1"
    if tensor.alignment < WIDEST:
        return (
            f"base or strides are no multiples of {WIDEST} bytes, so that each element is an access: "
            "pad the contiguous axis"
        )
    return ""


def _refused(function: Function) -> Iterator[str]:
    """A line for each better plan that the kernel did not get."""
    facts = function.facts
    refused = _refusals(facts)
    multiplies = any(type(op) in _INSTRUCTIONS for op in function.walk())
    staged = any(isinstance(op, StagedMma | StageTile) for op in function.walk())
    remedies: set[str] = set()
    for name, reason in refused:
        if reason.kind is Lack.ONE_PRODUCT and len(refused) > 1:  # the plan for several products has its own reason
            continue
        advice = REMEDIES.get(reason.kind, "")
        if advice and advice in remedies:  # two plans that lack the same
            continue
        remedies.add(advice)
        yield f"{in_words(name)}: {reason}{'. ' + advice if advice else ''}"
    # A plan with warp specialisation (the fact `computing`) loads ahead by TMA.
    if refused and multiplies and not staged and "computing" not in facts:
        yield (
            "no loop of products runs ahead of its loads (cp.async): operands are to be loaded in the loop, "
            "with 16-byte rows, at indices that it does not carry, and to fit shared memory twice"
        )
    why = _divided(facts)
    # The remedy for several products (`REMEDIES`) names split-K as well.
    several = any(reason.kind is Lack.ONE_PRODUCT for _, reason in refused)
    if why and not several and "division" not in facts and not any(isinstance(op, KSplits) for op in function.walk()):
        yield f"split-K: {why}"


def _divided(facts: Mapping[str, Any]) -> str:
    """The plan's words on split-K, without the "no: " of a refusal; "" for none."""
    return str(facts.get("divided", "")).removeprefix("no: ")


PARTS = 4
"""Sub-partitions of a multiprocessor, each with a quarter of the registers."""
REGISTER_UNIT = 256
"""Registers that are allocated to a warp at a time."""


@dataclass(frozen=True)
class Resident:
    """Thread blocks that a multiprocessor holds at once.

    Attributes:
        blocks: their number.
        limit: the scarce resource: "registers", "shared memory", "threads", "thread blocks", or several of these.
    """

    blocks: int
    limit: str


def resident_blocks(arch: Architecture, threads: int, registers: int, shared_bytes: int) -> Resident | None:
    """The thread blocks that a multiprocessor holds.

    The rule is that of NVIDIA's occupancy calculator: a warp's registers are allocated in units, in one sub-partition.

    None for an architecture that is not in `RESIDENT_LIMITS`.

    Args:
        arch: the architecture.
        threads: threads of a thread block.
        registers: registers of a thread.
        shared_bytes: shared memory of a thread block, in bytes.

    Example:
        >>> from cutile.backend.cuda.target import architecture
        >>> resident_blocks(architecture("sm_90a"), 256, 128, 70_000)
        Resident(blocks=2, limit='registers')
    """
    limits = RESIDENT_LIMITS.get((arch.major, arch.minor))
    if limits is None:
        return None
    max_threads, max_blocks = limits
    warps = -(-threads // 32)
    # `registers` is 0 for a log without a line of registers (`read_log`). A warp has at least one unit.
    warp_registers = -(-max(registers, 1) * 32 // REGISTER_UNIT) * REGISTER_UNIT
    blocks_by = {  # the system's bytes are added to each block's, and to those of the multiprocessor
        "registers": arch.registers // PARTS // warp_registers * PARTS // warps,
        "shared memory": (arch.shared_bytes + SYSTEM_BYTES) // (shared_bytes + SYSTEM_BYTES),
        "threads": max_threads // (warps * 32),
        "thread blocks": max_blocks,
    }
    blocks = min(blocks_by.values())
    return Resident(blocks, " and ".join(name for name, most in blocks_by.items() if most == blocks))


def explain(facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
    """The rows of a kernel, from the facts of a `Source` or an `Executable`.

    Those of an executable include the toolchain's report.
    """
    arch = architecture(target.arch)
    shared, threads = int(facts["shared_bytes"]), int(facts["threads"])
    rows = [(str(heading), str(text)) for heading, text in facts["plan"]]
    reasons = [row for row in rows if row[0] == "why not better"]
    unused = [row for row in rows if row[0] == NOT_USED]
    rows = [row for row in rows if row[0] not in ("why not better", NOT_USED)]
    if "registers" in facts:
        rows.append(("registers", _registers(facts)))
        reasons += [("why not better", str(each)) for each in facts.get("remarks", ())]
    rows.append(("shared", f"{kilobytes(shared)} of {kilobytes(arch.shared_bytes)}"))
    if "registers" in facts:
        resident = resident_blocks(arch, threads, int(facts["registers"]), shared)
        if resident is not None:
            blocks = f"{resident.blocks} thread block{'' if resident.blocks == 1 else 's'}"
            rows.append(("residency", f"{blocks} on a multiprocessor, limited by {resident.limit}"))
            # With `may_have_fewer_blocks`, the number is an estimate of the lowering, and no option of the user's.
            if resident.blocks < facts["min_blocks"] and not facts.get("may_have_fewer_blocks"):
                unused.append((NOT_USED, f"occupancy={facts['min_blocks']}: {blocks} fit, limited by {resident.limit}"))
    return (*rows, *unused, *(reasons or [("why not better", "no better plan was refused")]))


def _registers(facts: Mapping[str, Any]) -> str:
    spills, stack = int(facts["spills"]), int(facts["stack"])
    text = f"{facts['registers']} a thread"
    if spills:
        return f"{text}, {spills} bytes spilled: use smaller tiles or more warps"
    return f"{text}, no spills" + (f", {stack} bytes of stack" if stack else "")
