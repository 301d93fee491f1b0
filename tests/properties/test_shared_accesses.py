"""Whatever the compiler accepts of a `SharedMut`, the interpreter finds no race in; indices and grids are random."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

import cutile as ct
from cutile import api, i32
from cutile.errors import KernelTypeError, LaunchError, RaceError
from tests.support.kernels import define

SIZE = 96

TERMS = ("b", "c", "n", "k", "t", "place")
"""The block's index along two axes, an argument, a loop's variable, every n-th tile, a claim."""

KERNEL = """
def kernel(y: ct.SharedMut, z: ct.SharedMut, n: i32):
    b, c, _ = ct.get_tile_block_id()
    part = y.partition(({tile},))
    lane = ct.iota(({lanes},))
    for t in range(b + {start}, 12, ct.get_num_tile_blocks()[0]):
        place = ct.atomic_add(z, 0, {claim})
        for k in range({low}, {high}):
            {first}
            {second}
"""
ACCESSES = {
    "store": "part.store(7, {index})",
    "scatter": "ct.scatter(y, lane * {lane} + {index}, 7, mask={inside})",
    "load": "part.load({index})",
    "gather": "ct.gather(y, lane + {index}, mask={inside})",
    "add": "ct.atomic_add(y, lane + {index}, 1, mask={inside})",
    "nothing": "pass",
}


def index_text(own: tuple[str, int], more: list[tuple[str, int]], rest: int) -> str:
    """A sum of multiples, and a constant."""
    return " + ".join([*(f"{factor} * {term}" for term, factor in (own, *more)), str(rest)])


INDICES = st.builds(
    index_text,
    st.tuples(st.sampled_from(TERMS), st.sampled_from([-4, 0, 1, 2, 3, 4, 6, 8])),
    st.lists(st.tuples(st.sampled_from(TERMS), st.sampled_from([-1, 1, 2])), max_size=1),
    st.integers(0, 3),
)


@st.composite
def kernels(draw: st.DrawFn) -> str:
    """The text of a kernel with one or two accesses, each at a sum of multiples."""

    common = draw(st.none() | INDICES)

    def access(kinds: list[str]) -> str:
        index = common if common is not None and draw(st.integers(0, 4)) else draw(INDICES)
        kind, lane = draw(st.sampled_from(kinds)), draw(st.integers(1, 3))
        inside = f"((lane * {lane if kind == 'scatter' else 1} + {index}) >= 0) & "
        inside += f"((lane * {lane if kind == 'scatter' else 1} + {index}) < {SIZE})"
        text = ACCESSES[kind].format(index=index, lane=lane, inside=inside)
        tiles = f"if ({index} >= 0) & ({index} < ct.num_tiles(part, 0)):\n                "
        return tiles + text if kind in ("store", "load") else text

    low = draw(st.integers(0, 2))
    return KERNEL.format(
        tile=draw(st.integers(1, 6)),
        lanes=draw(st.integers(1, 5)),
        start=draw(st.integers(0, 2)),
        claim=draw(st.integers(0, 3)),
        low=low,
        high=low + draw(st.integers(1, 3)),
        first=access(["store", "scatter"]),
        second=access(list(ACCESSES)),
    )


ONE = KERNEL.format(
    tile=4, lanes=4, start=0, claim=1, low=0, high=1, first="part.store(7, t)", second="ct.gather(y, 4 * t + lane)"
)


@settings(max_examples=28, deadline=None)
@given(kernels(), st.tuples(st.integers(1, 4), st.integers(1, 3)), st.integers(0, 5))
@example(ONE, (3, 1), 2)
def test_what_is_accepted_does_not_race(text: str, grid: tuple[int, int], n: int) -> None:
    function = define(text)
    kernel = ct.entry(function)
    y, z = api.zeros((SIZE,), i32).sync(), api.zeros((1,), i32).sync()
    racing = False
    try:
        ct.entry(unsafe=True)(function)(y, z, n, grid=grid).interpret().sync()
    except RaceError:
        racing = True
    try:
        with ct.use_backend("reference"):
            kernel(y, z, n, grid=grid).sync()
    except (KernelTypeError, LaunchError):
        assert text != ONE, "this one is shown to be safe"
        return
    assert not racing
