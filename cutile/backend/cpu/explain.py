"""The plan of a kernel on a CPU in words.

Threads, vectors, fused loops, calls of the BLAS.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from cutile.backend.cpu.stage import Gemm, Read, ReadInside, Scratch, Step, Write
from cutile.backend.cpu.streaming import LINE
from cutile.backend.interface import NOT_USED, Row, Target, unused_rows
from cutile.ir import Block, For, Function, Op, TileType
from cutile.passes.fast_math import FACT

_INDEXING = frozenset({"constant", "yield", "convert"})
"""The names of operations that a plan does not list as a loop's work."""


def plan(function: Function) -> tuple[Row, ...]:
    """Rows of a lowered kernel; `explain` adds what the target and LLVM alone know."""
    facts = function.facts
    rows: list[Row] = []
    products = {op.c.tensor.dtype.name: op for op in function.walk() if isinstance(op, Gemm)}
    for dtype in products:
        rows.append(("products", f"{'dgemm' if dtype == 'f64' else 'sgemm'} of the BLAS, {dtype}"))
    coarse = " x ".join(map(str, facts["coarse"]))
    joined = int(facts["joined"])
    joins = f"up to {joined} neighbouring tile blocks ({coarse}) run as one" if joined > 1 else "tile blocks run singly"
    rows.append(("schedule", joins))
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
        rows.append(("scratch", f"{nbytes / 1024:.0f} KiB a thread: {names}"))
    rows += [("why not better", reason) for reason in facts["plans"] if "since" in reason]
    return (*rows, *unused_rows(facts))


def explain(facts: Mapping[str, Any], target: Target) -> tuple[Row, ...]:
    """The rows of a kernel, from the facts of a `Source` or an `Executable`."""
    rows = [(str(heading), str(text)) for heading, text in facts["plan"]]
    reasons = [row for row in rows if row[0] == "why not better"]
    unused = [row for row in rows if row[0] == NOT_USED]
    rows = [row for row in rows if row[0] not in ("why not better", NOT_USED)]
    threads = f"{target.units} threads, " if target.units else ""
    rows.insert(0, ("threads", f"{threads}which take ranges of tile blocks as they get free"))
    if facts.get("streaming") and facts.get("results"):
        rows.append(("stores", f"streaming, past the caches, where rows begin at multiples of {LINE} bytes"))
    elif facts.get("results"):
        rows.append(("stores", "streaming in launches that write more than the last cache holds"))
    elif facts.get("streaming"):
        unused.append((NOT_USED, "streaming_stores=True: no loop writes results that can go past the caches"))
    if "vectors" in facts:
        rows.append(("vectors", str(facts["vectors"]) or "none: the loops are scalar"))
    return (*rows, *unused, *(reasons or [("why not better", "no better plan was refused")]))


def _innermost(block: Block) -> Iterator[Block]:
    """The bodies of the innermost loops."""
    for op in block.operations:
        for nested in op.regions:
            yield from _innermost(nested)
            if isinstance(op, For) and not any(isinstance(each, For) for each in nested.walk()):
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
    work = dict.fromkeys(op.kind if isinstance(op, Step) else op.name for op in ops if _is_work(op))
    lines = sorted({op.location.line for op in ops if op.location})
    where = f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}: " if lines else ""
    steps = [", ".join(names) for names in (reads, work, writes) if names]
    return where + " -> ".join(steps)


def _is_work(op: Op) -> bool:
    """Whether an operation is the kernel's own, and not arithmetic of its indices."""
    if op.name in _INDEXING or isinstance(op, Read | ReadInside | Write) or not op.results:
        return False
    value = op.results[0]  # a branch may have several
    if not isinstance(value.type, TileType):  # a tensor at an address
        return False
    kind = value.tile.dtype.kind
    # Floats are never indices; integers may be, and are left out.
    return isinstance(op, Step) or (kind in ("float", "storage") and not op.name.startswith("cpu."))
