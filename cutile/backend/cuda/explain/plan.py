"""What a lowered kernel says of its plan.

Rows of a heading and a text, read from its operations and facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cutile.backend.cuda.explain.products import is_f32_by_fma, products
from cutile.backend.cuda.explain.remedies import in_words, remedy
from cutile.backend.cuda.ops.memory import Store, StoreSubtile
from cutile.backend.cuda.ops.pipeline import BufferType, Pipeline
from cutile.backend.cuda.ops.roles import FirstTile, NextTile, Roles, SetMaxRegisters, TileIndex
from cutile.backend.cuda.ops.split_k import KSplits
from cutile.backend.cuda.ops.stage import StagedMma, StageTile
from cutile.backend.cuda.ops.tma import TmaLoad, TmaStore
from cutile.backend.cuda.target import Architecture
from cutile.backend.interface import Row
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import MutType, TensorType, TileType, Type
from cutile.ops.memory import LoadTile
from cutile.ops.pointer import LoadPointer, StorePointer
from cutile.ops.view import LoadView, StoreView
from cutile.passes.fast_math import FACT

WIDEST = 16
"""Bytes of the widest access of a thread."""
LOADS = (LoadTile, LoadView, LoadPointer)
STORES = (Store, StoreSubtile, StoreView, StorePointer)


def plan(function: Function, arch: Architecture) -> tuple[Row, ...]:
    """Rows of a lowered kernel, except what the toolchain knows (`resources.explain`)."""
    ops = list(function.walk())
    loads, stores = _accesses(ops, LOADS), _accesses(ops, STORES)
    rows: list[Row] = [("products", line) for line in products(function, arch)]
    rows += [("pipelines", line) for line in _pipelines(ops)]
    rows.append(("warps", _warps(function, ops)))
    rows.append(("schedule", _schedule(function, ops)))
    rows += [("loads", line) for line in [*_bulk_loads(ops), *loads]]
    rows += [("epilogue" if rows[0][0] == "products" else "stores", line) for line in [*_bulk_stores(ops), *stores]]
    if relaxed := function.facts.get(FACT):
        rows.append(("fast math", "; ".join(relaxed)))
    reasons = [*_refused(function), *_narrow(ops)]
    if is_f32_by_fma(function) and not any("tf32" in each for each in reasons):
        reasons.append("products of f32 keep off the tensor cores, which would round them: convert operands to ct.tf32")
    rows += [("why not better", line) for line in dict.fromkeys(reasons)]
    return tuple(rows)


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
    """What is loaded ahead, in how many stages of how many bytes."""
    fills: dict[Value, dict[str, None]] = {}
    for op in ops:
        if isinstance(op, TmaLoad):
            fills.setdefault(op.pipeline, {})[op.x.name] = None
    for op in ops:
        if isinstance(op, Pipeline) and op.buffers:
            nbytes = 0
            for buffer in op.buffers:
                assert isinstance(buffer.type, BufferType)
                size = buffer.type.dtype.bits // 8
                for extent in buffer.type.shape:
                    size *= extent
                nbytes += size
            names = ", ".join(fills.get(op.result, {})) or "operands"
            yield f"{names}: {_counted(op.stages, 'stage')} of {kilobytes(nbytes)}, filled by TMA"
    rings: dict[tuple[Any, ...], dict[str, None]] = {}
    for op in ops:
        if isinstance(op, StageTile):
            place = op.attributes["offset"], *op.stage[1:]
            rings.setdefault(place, {})[op.x.name] = None
    for (_, slots, nbytes), names in rings.items():
        yield f"{', '.join(names)}: {_counted(slots, 'stage')} of {kilobytes(nbytes)}, filled by cp.async"


def _warps(function: Function, ops: Sequence[Op]) -> str:
    """Who does what."""
    facts = function.facts
    threads = int(facts["threads"])
    roles = next((op for op in ops if isinstance(op, Roles)), None)
    if roles is None:
        return f"{_counted(int(facts['warps']), 'warp')}, all alike: {threads} threads"
    counts = [
        next((f", {op.count} registers" for op in block.walk() if isinstance(op, SetMaxRegisters)), "")
        for block in (roles.load, roles.compute)
    ]
    alone = any(isinstance(op, FirstTile) and op.alone > 1 for op in ops)
    pingpong = ", each with tiles of its own (ping-pong)" if alone else ""
    return (
        f"a producer warpgroup (one thread issues TMA{counts[0]}), "
        f"{_counted(roles.groups, 'consumer warpgroup')} (products and epilogue{counts[1]}){pingpong}: "
        f"{threads} threads"
    )


def _schedule(function: Function, ops: Sequence[Op]) -> str:
    """Which thread block does which tiles."""
    facts = function.facts
    if facts.get("persistent"):
        order = next((op for op in ops if isinstance(op, TileIndex)), None)
        together = f", {order.group} rows of tiles at a time" if order is not None and order.group > 1 else ""
        parts = [f"persistent: as many thread blocks as fit take tile after tile{together}"]
        if any(isinstance(op, NextTile) for op in ops):
            first = ", the longest first" if any(isinstance(op, TileIndex) and op.backwards for op in ops) else ""
            parts.append(f"tiles differ, and are taken one by one as thread blocks come to them{first}")
    else:
        parts = ["one thread block for each tile"]
    cluster = int(facts.get("cluster", 1))
    pieces = next((op for op in ops if isinstance(op, KSplits)), None)
    if pieces is not None:
        where = "shared memory of a cluster" if cluster > 1 else "a workspace"
        parts.append(f"split-K: up to {pieces.most} thread blocks to a tile, whose sums meet in {where}")
    elif "division" in facts:
        most = max(tiles for tiles, *_ in facts["division"][1])
        parts.append(f"split-K in launches of up to {most} tiles")
    if cluster > 1 and pieces is None:
        parts.append(f"clusters of {cluster} share operands (TMA multicast)")
    if facts.get("early"):
        parts.append("starts before the kernel ahead has ended (programmatic dependent launch)")
    return "; ".join(parts)


def _bulk_loads(ops: Sequence[Op]) -> Iterator[str]:
    """Tensors that TMA loads and that the rows of pipelines do not mention."""
    if not any(isinstance(op, Pipeline) for op in ops):
        names = dict.fromkeys(op.x.name for op in ops if isinstance(op, TmaLoad))
        if names:
            yield f"{', '.join(names)} by TMA"


def _bulk_stores(ops: Sequence[Op]) -> Iterator[str]:
    """What TMA stores."""
    stores: dict[str, tuple[int, bool]] = {}
    for op in ops:
        if isinstance(op, TmaStore):
            span, packed = stores.get(op.x.name, (0, False))
            stores[op.x.name] = max(span, int(op.attributes.get("span", 0))), packed or op.packed
    for name, (span, packed) in stores.items():
        columns = f", {span} columns at a time" if span else ""
        after = ", during the next tile's products" if packed else ""
        yield f"{name} by TMA stores{columns}{after}"


def _accesses(ops: Sequence[Op], kinds: tuple[type[Op], ...]) -> list[str]:
    """Accesses by threads: a line for each width."""
    names: dict[str, dict[str, None]] = {}
    for op in ops:
        if isinstance(op, kinds) and isinstance(op, LoadPointer | StorePointer):
            names.setdefault("element by element, by address", {})["pointers"] = None
        elif isinstance(op, kinds) and not (tile := _accessed(op)).is_scalar:
            vector = op.attributes.get("vector")
            nbytes = tile.dtype.bits // 8 * (vector[1] if vector else 1)
            names.setdefault(f"{_counted(nbytes, 'byte')} a thread at once", {})[op.operands[0].name or "view"] = None
    return [f"{', '.join(each)}: {width}" for width, each in names.items()]


def _accessed(op: Op) -> TileType:
    """The tile that is loaded or stored."""
    return op.results[0].tile if op.results else op.operands[1].tile


def _narrow(ops: Sequence[Op]) -> Iterator[str]:
    """Tensors whose elements are accessed one by one, and why."""
    names: dict[str, dict[str, None]] = {}
    for op in ops:
        plain = isinstance(op, LOADS + STORES) and not isinstance(op, LoadPointer | StorePointer)
        if plain and op.attributes.get("vector") is None and _accessed(op).size > 1:
            tensor = op.operands[0]
            if why := _why_narrow(tensor.type):
                names.setdefault(why, {})[tensor.name or "view"] = None
    for why, each in names.items():
        yield f"{', '.join(each)}: {why}"


def _why_narrow(kind: Type) -> str:
    """What keeps accesses to a tensor narrow; empty where it is the tile."""
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
    """The better plans that the kernel did not get."""
    facts = function.facts
    refused = [(str(name), str(reason)) for name, reason in facts.get("refused", ())]
    staged = any(isinstance(op, StagedMma | StageTile) for op in function.walk())
    said: set[str] = set()
    for name, reason in refused:
        what = remedy(reason)
        if reason.endswith("products, not one"):
            if len(refused) > 1:  # the plan for several products has its own reason
                continue
            what = "Clusters, split-K and a delayed epilogue are for kernels of one product"
        if what and what in said:  # two plans that lack the same
            continue
        said.add(what)
        yield f"{in_words(name)}: {reason}{'. ' + what if what else ''}"
    if refused and not staged and "computing" not in facts:
        yield (
            "no loop of products runs ahead of its loads (cp.async): operands are to be loaded in the loop, "
            "with 16-byte rows, at indices that it does not carry, and to fit shared memory twice"
        )
    why = str(facts.get("divided", "")).removeprefix("no: ")
    several = any(reason.endswith("products, not one") for _, reason in refused)  # which says of split-K, too
    if why and not several and "division" not in facts and not any(isinstance(op, KSplits) for op in function.walk()):
        yield f"split-K: {why}"
