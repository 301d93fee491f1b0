"""A CPU kernel's plan, in words.

Threads, vectors, fused loops, calls of the BLAS.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from cutile.backend.cpu.lowering.blocking import schedule_words
from cutile.backend.cpu.stage import Gemm, Read, ReadInside, Scratch, Step, TimesReciprocal, Write
from cutile.backend.cpu.streaming import LINE
from cutile.backend.interface import NOT_USED, Row, Target, unused_rows
from cutile.config import last_cache_bytes
from cutile.ir import Block, For, Function, Op, TileType
from cutile.ops.arith import Div
from cutile.passes.fast_math import FACT

_UNLISTED = frozenset({"constant", "yield", "convert"})
"""Operations that a plan does not list: they cost next to nothing beside a loop's work."""

_REFUSED = "why not better"
"""The heading of reasons against better plans."""


def plan(function: Function) -> tuple[Row, ...]:
    """Rows of a lowered kernel; `explain` adds what the target and LLVM alone know."""
    facts = function.facts
    rows: list[Row] = []
    for dtype in dict.fromkeys(op.c.tensor.dtype.name for op in function.walk() if isinstance(op, Gemm)):
        rows.append(("products", f"{'dgemm' if dtype == 'f64' else 'sgemm'} of the BLAS, {dtype}"))
    rows.append(("schedule", schedule_words(facts)))
    loops: dict[str, None] = {}  # each text once, in order: a nest may be there twice, with checks and without
    for block in _innermost(function.body):
        if line := _fused(block):
            loops[line] = None
    rows += [("fused", line) for line in loops]
    if relaxed := facts.get(FACT):
        rows.append(("fast math", "; ".join(relaxed)))
    scratch = [op for op in function.body.operations if isinstance(op, Scratch)]
    if scratch:
        nbytes = sum(op.nbytes for op in scratch)
        names = ", ".join(op.result.name or "a tile" for op in scratch)
        size = f"{nbytes / 1024:.0f} KiB" if nbytes >= 1024 else f"{nbytes} bytes"
        rows.append(("scratch", f"{size} a thread: {names}"))
    rows += [(_REFUSED, reason) for reason in facts["refused_plans"]]
    return (*rows, *unused_rows(facts))


def explain(facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
    """The rows of a kernel, from the facts of a `Source` or an `Executable`."""
    rows = [(str(heading), str(text)) for heading, text in facts["plan"]]
    # Shown last: options without effect, then the reasons against better plans.
    reasons = [row for row in rows if row[0] == _REFUSED]
    unused = [row for row in rows if row[0] == NOT_USED]
    rows = [row for row in rows if row[0] not in (_REFUSED, NOT_USED)]
    threads = f"{target.units} threads" if target.units else "threads"
    rows.insert(0, ("threads", f"{threads} take ranges of tile blocks as they get free"))
    if facts.get("streaming") and facts.get("results"):
        rows.append(("stores", f"streaming, past the caches, where rows begin at multiples of {LINE} bytes"))
    elif facts.get("results") and last_cache_bytes():  # else no launch takes the variant (`StreamingVariants`)
        rows.append(("stores", "streaming in launches that write as many bytes as the last-level cache holds, or more"))
    elif facts.get("streaming"):
        unused.append((NOT_USED, "streaming_stores=True: no loop writes results that can go past the caches"))
    if "vectors" in facts:
        rows.append(("vectors", str(facts["vectors"]) or "none: the loops are scalar"))
    return (*rows, *unused, *(reasons or [(_REFUSED, "no better plan was refused")]))


def _innermost(block: Block) -> Iterator[Block]:
    """The bodies of the innermost loops over elements; all are of the type `For`."""
    for op in block.operations:
        for nested in op.regions:
            yield from _innermost(nested)
            if isinstance(op, For) and not any(isinstance(inner, For) for inner in nested.walk()):
                yield nested


def _fused(block: Block) -> str:
    """The reads, work and writes of one loop over elements, as text.

    Empty where it neither reads nor writes.
    """
    ops = list(block.walk())
    reads = dict.fromkeys(op.x.name for op in ops if isinstance(op, Read | ReadInside))
    writes = dict.fromkeys(op.x.name for op in ops if isinstance(op, Write))
    if not writes and not reads:
        return ""
    work = dict.fromkeys(_name_of(op) for op in ops if _is_work(op))
    lines = sorted({op.location.line for op in ops if op.location})
    where = f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}: " if lines else ""
    steps = [", ".join(names) for names in (reads, work, writes) if names]
    return where + " -> ".join(steps)


def _name_of(op: Op) -> str:
    """The name of an operation as the kernel has it."""
    if isinstance(op, TimesReciprocal):
        return Div.name
    return op.kind if isinstance(op, Step) else op.name


def _is_work(op: Op) -> bool:
    """Whether a plan lists an operation: reductions, and work on floats.

    Other work on integers is left out, since indices are integers, too.
    """
    if op.name in _UNLISTED or isinstance(op, Read | ReadInside | Write) or not op.results:
        return False
    value = op.results[0]  # a branch may have several
    if not isinstance(value.type, TileType):  # a tensor at an address
        return False
    if isinstance(op, Step | TimesReciprocal):
        return True
    return value.tile.dtype.kind in ("float", "storage") and not op.name.startswith("cpu.")
