"""Random indices: a launch with placed checks fails where one with every check in the kernel does, and only there.

Tensors, and slices of them, may be empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

import cutile as ct
from tests.support.kernels import define
from tests.support.memory import launch

ATOMS = (
    "i",
    "k",
    "k + d",
    "n",
    "m",
    "0",
    "1",
    "3",
    "ct.num_tiles(part, 0)",
    "x.shape[0]",
    "ct.get_num_tile_blocks()[0]",
)
BOUNDS = ("2", "n", "m", "i", "ct.num_tiles(part, 0)", "n // 2", "m - 1", "d", "d + 2")


@dataclass(frozen=True)
class Case:
    """A kernel that loads at an index, and what it is launched with."""

    text: str
    blocks: int
    extent: int
    n: int
    m: int


def indices() -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from("+-"), inner),
            st.builds("({} * {})".format, inner, st.sampled_from(["2", "3", "-1"])),
            st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.sampled_from(["2", "3", "4"])),
            st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
        )

    return st.recursive(st.sampled_from(ATOMS), larger, max_leaves=4)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    start, stop = draw(st.sampled_from(("0", "1", *BOUNDS))), draw(st.sampled_from(BOUNDS))
    step = draw(st.sampled_from(["1", "1", "1", "2", "-1", "ct.get_num_tile_blocks()[0]"]))
    guard = draw(st.sampled_from(["", "", "", "if n > 2:", "for j in range(m):"]))
    index = draw(indices())
    inner = f"            acc = acc + part.load(({index},))\n" if not guard else ""
    nested = f"            {guard}\n                acc = acc + part.load(({index},))\n" if guard else ""
    cut = draw(st.sampled_from(["", "", ".slice(0, 0, n)", ".slice(0, n, m)", ".slice(0, d, d + m)", ".slice(0, -m)"]))
    text = (
        "def f(y: Mut, x: Tensor, n: i32, m: i32):\n"
        "    i = ct.get_tile_block_id()[0]\n"
        "    d = ct.convert_tile(ct.reduce_sum(x.load_tile((1,), (0,)), 0), ct.i32) - 1\n"  # data
        f"    part = x{cut}.partition((4,))\n"
        "    acc = y.load()\n"
        "    if True:\n"
        f"        for k in range({start}, {stop}, {step}):\n{inner}{nested}"
        "    y.store(acc)\n"
    )
    numbers = st.integers(0, 6)
    return Case(text, draw(st.integers(1, 3)), draw(st.integers(0, 20)), draw(numbers), draw(numbers))


def outcome(case: Case, check: bool) -> tuple[bool, np.ndarray]:
    kernel = ct.entry(check_accesses=check)(define(case.text))
    y, x = np.zeros(4 * case.blocks, np.float32), np.arange(case.extent, dtype=np.float32)
    try:
        launch(kernel, (y, (4,)), x, case.n, case.m)
    except (ct.LaunchError, ct.KernelAssertionError):
        return False, y
    return True, y


EMPTY = """\
def f(y: Mut, x: Tensor, n: i32, m: i32):
    y.store(x.slice(0, n, m).partition((4,)).load((0,)))
"""


@example(case=Case(EMPTY, blocks=1, extent=8, n=2, m=2))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(case=cases())
def test_placed_checks_find_what_checks_in_the_kernel_find(case: Case) -> None:
    note(case.text)
    (found, y), (wanted, expected) = outcome(case, False), outcome(case, True)
    assert found == wanted
    if found:
        np.testing.assert_array_equal(y, expected)
