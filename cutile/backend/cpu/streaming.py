"""Streaming stores: results that go past the caches to memory.

An ordinary store first reads the cache line that it writes to. Where a result is larger than the last-level cache,
these reads are a third of the traffic of `y = f(x)`, and nothing uses the lines. So launches that write so much take a
variant of the kernel, compiled with `streaming_stores`. Its vector stores are non-temporal (LLVM language reference,
"store").

The address of such a store must be a multiple of its size. The variant has the loops twice: once for results whose rows
begin at multiples of `LINE` bytes, as LLVM is told, and once for all others. LLVM then states which stores are aligned.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.backend.cpu.stage import Size, Stride, Write
from cutile.backend.interface import Change, Parameter
from cutile.config import last_cache_bytes
from cutile.ir import Function, MutType, Value

LINE = 64
"""Bytes of a cache line, and of the widest vector."""

LOOPS, STREAMING = "cutile_loops", "cutile_streaming"
"""The functions with ordinary stores and with streaming stores."""

_STORE = re.compile(r"^  store <(?P<count>\d+) x (?P<kind>i\d+|float|double|half)> .*, align (?P<align>\d+)")
_BITS = {"float": 32, "double": 64, "half": 16}
_MIN_BYTES = 16
"""Bytes of the smallest vector that machines store past the caches, such as x86 by `movntps`."""
_MARK = ", !nontemporal !777777"
_NODE = "\n!777777 = !{i32 1}\n"
"""The metadata node of the mark. LLVM numbers a module's own nodes from 0, and no module has so many."""


Streamed = Mapping[int, tuple[str, int]]
"""Parameters of results by position: `pointer` or `stride`, and the bytes of an element."""


@dataclass(frozen=True)
class Result:
    """A tensor that a kernel writes and does not read.

    Attributes:
        argument: its position among the kernel's arguments.
        rank: the number of its axes.
        element_bytes: the bytes of an element.
    """

    argument: int
    rank: int
    element_bytes: int

    def byte_count(self) -> list[Any]:
        """The formula of its bytes, which a launch evaluates (`Executable`)."""
        formula: Any = self.element_bytes
        for axis in range(self.rank):
            formula = ["*", ["extent", self.argument, axis], formula]
        return formula


def results_of(function: Function, arguments: Sequence[Value]) -> tuple[Result, ...]:
    """The results of a lowered kernel that may be streamed.

    Their elements lie side by side along an axis, and a tile's extent along it fills whole cache lines. So if a row of
    memory begins at a multiple of a line, each tile does.
    """
    if not function.facts["noalias"]:  # tensors may overlap: loads from another tensor may read the result
        return ()
    others: set[Value] = set()
    written: set[Value] = set()
    for op in function.walk():
        if isinstance(op, Write):
            written.add(op.x)
        elif not isinstance(op, Size | Stride):
            others.update(op.operands)
    only_written = written - others
    results: list[Result] = []
    for position, value in enumerate(arguments):
        if value not in only_written or not isinstance(value.type, MutType):
            continue
        tensor, tile = value.type.tensor, value.type.tile
        size = max(tensor.dtype.bits, 8) // 8  # bools are bytes
        if tensor.strides.count(1) == 1 and tile[tensor.strides.index(1)] * size % LINE == 0:
            results.append(Result(position, tensor.rank, size))
    return tuple(results)


class StreamingVariants:
    """A kernel's variants: ordinary stores, or streaming ones for large results.

    Args:
        results: the kernel's results that may be streamed; at least one.
    """

    __slots__ = ("_bytes", "count", "max_blocks")

    def __init__(self, results: Sequence[Result]) -> None:
        self.count: Any = results[0].byte_count()
        for result in results[1:]:
            self.count = ["+", self.count, result.byte_count()]
        self.max_blocks = 2**63  # more than any launch has, so that every launch computes `count`
        self._bytes = last_cache_bytes()

    def choose(self, blocks: int, count: int) -> Change:
        """Streaming stores for launches that write as much as the last cache holds.

        Args:
            blocks: tile blocks of the launch; they do not matter here.
            count: bytes that it writes.
        """
        # 0: the system does not tell the size of its last cache.
        return (("streaming_stores", True),) if 0 < self._bytes <= count else ()


def mark_streaming(text: str) -> str:
    """Make the aligned vector stores of `STREAMING` non-temporal.

    Takes and returns the text of an optimised module.

    Example:
        >>> print(mark_streaming('''define void @cutile_streaming(ptr %0) {
        ...   store <8 x float> %v, ptr %0, align 32
        ...   store <8 x float> %v, ptr %1, align 4
        ... }''').splitlines()[1])
          store <8 x float> %v, ptr %0, align 32, !nontemporal !777777
    """
    lines = text.splitlines()
    inside = False
    for number, line in enumerate(lines):
        if line.startswith("define "):
            inside = f"@{STREAMING}(" in line
        elif inside and (store := _STORE.match(line)):
            bits = _BITS.get(store["kind"]) or int(store["kind"][1:])  # "i32"
            size = int(store["count"]) * bits // 8
            # LLVM splits a vector that is wider than the machine's. A part is a line at most, and aligned if the whole
            # vector is aligned to a line.
            if size >= _MIN_BYTES and int(store["align"]) >= min(size, LINE):
                lines[number] = line[: store.end()] + _MARK + line[store.end() :]
    return "\n".join(lines) + _NODE


def streaming_parameters(parameters: Sequence[Parameter], results: Sequence[Result]) -> Streamed:
    """The parameters that decide whether results are aligned: addresses, strides."""
    by_argument = {result.argument: result for result in results}
    return {
        position: (parameter.kind, by_argument[parameter.argument].element_bytes)
        for position, parameter in enumerate(parameters)
        if parameter.argument in by_argument and parameter.kind in ("pointer", "stride")
    }
