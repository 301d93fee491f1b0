"""Chains whose values share operands have as many paths as 2 to their length: compiling takes each value once."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest

from cutile.dtypes import i32, u8
from cutile.ir.types import Type
from tests.backend.cpu import programs as cpu
from tests.backend.cuda import programs as cuda
from tests.backend.cuda.test_compaction import COMPACTED
from tests.backend.cuda.test_compaction import TYPES as COMPACTED_TYPES
from tests.backend.cuda.test_private_updates import LOOP, shared
from tests.support.programs import mut, scalar, tensor

TYPES: dict[str, Type] = {"y": mut(64), "x": tensor(1), "n": scalar(i32)}
UPDATE_TYPES: dict[str, Type] = {"y": shared(), "x": tensor(1, u8)}


def chain(count: int, *lines: str, depth: int = 1) -> str:
    """`count` times the lines, with a number of its own for `%K`."""
    return "".join(f"{'    ' * depth}{line.replace('%K', str(k + 1))}\n" for k in range(count) for line in lines)


def compacted(index: str, mask: str, lines: str) -> str:
    made = COMPACTED.replace("INDEX", index).replace("MASK", mask)
    return made.replace("    ct.scatter", f"    q = before + places\n    m = above\n{lines}    ct.scatter")


def update(start: str, lines: str) -> str:
    body = f"t = {start}\n        m = part.inside(i)\n{lines}        ct.atomic_add(y, t, 1, mask=m)"
    return LOOP.format(body=body)


def simple(*lines: str) -> Callable[[int], str]:
    return lambda count: f"def k(y: Mut, x: Tensor, n: i32):\n    q = n > 3\n{chain(count, *lines)}{END}"


END = "    assert q\n    y.store(ct.load_tile_like(x, y))\n"
CHAINS: dict[str, tuple[Callable[[int], str], dict[str, Type]]] = {
    "the mask of a compaction": (
        lambda n: compacted("before + places - 1", "m", chain(n, "a = m & (t < %K.0)", "m = a & (a & (t > -%K.0))")),
        {**COMPACTED_TYPES},
    ),
    "the index of a compaction": (
        lambda n: compacted("q", "above", chain(n, "a = q + %K", "q = a + (a - places)")),
        {**COMPACTED_TYPES},
    ),
    "the mask of an update": (
        lambda n: update("part.load(i)", chain(n, "a = m & (t < %K)", "m = a & (a & (t > 3))", depth=2)),
        UPDATE_TYPES,
    ),
    "the index of an update": (
        lambda n: update("part.load(i).astype(i32)", chain(n, "a = t + %K", "t = a + (a - 3)", depth=2)),
        UPDATE_TYPES,
    ),
    "an assertion": (simple("a = q & (n > %K)", "q = a & (a & (n < -%K))"), TYPES),
    "or": (simple("a = q & (q | (n > %K))", "q = a | (q & a)"), TYPES),
}


def calls(write: Callable[[], object]) -> int:
    """How many calls a function takes."""
    profile = cProfile.Profile()
    with profile:
        write()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_twice_as_long_takes_about_twice_the_work(name: str) -> None:
    kernel, types = CHAINS[name]

    def write(count: int) -> Callable[[], object]:
        return lambda: cuda.source(cuda.written(kernel(count), types))

    write(2)()  # work that is done once in a process
    few, many = calls(write(7)), calls(write(14))
    assert many < 2.6 * few, f"{few} calls for 7 links, {many} for 14"
    write(40)()
    cpu.source(kernel(40), types)
