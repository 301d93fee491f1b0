"""Statements about plain numbers and far indices, which assert what Python says: all backends share the front end.

A plain number is drawn as text together with its value, which Python computes exactly; on the way there it exceeds 32
bits. An index is drawn so that it lies outside of every tensor, and what is loaded there has to be padding.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from cutile.dtypes import i64
from tests.properties.generator.arguments import Scalar
from tests.properties.generator.drawer import Drawer

MOST = 2**62
FACTORS = (2, 3, 7, 1_000_003, 100_000_000, 2**31 - 1, 2**31, 2**33 + 1)
OPERATORS: dict[str, Callable[[int, int], int]] = {
    "({} + {})": operator.add, "({} - {})": operator.sub, "({} * {})": operator.mul, "({} // {})": lambda x, y: x // y,
    "({} % {})": operator.mod, "min({}, {})": min, "max({}, {})": max, "({} & {})": lambda x, y: x & y,
    "({} | {})": lambda x, y: x | y, "ct.ceil_div({}, {})": lambda x, y: -(-x // y),
}  # fmt: skip
DIVISIONS = ("({} // {})", "({} % {})", "ct.ceil_div({}, {})")

FAR = (
    2**31, 2**31 + 1, 2**32, 2**32 + 1, 2**33, 3 * 2**40, 2**62, 2**63 - 1,
    -1, -(2**31), -(2**31) - 1, -(2**32), 1 - 2**33, -(2**63), 2**30, 2**28, 2**26,
)  # fmt: skip
"""Indices that no tensor here has. Some are those of an element again in 32 bits, some when they are times a tile."""


def _known(d: Drawer) -> tuple[str, int]:
    """A plain number that the launch knows."""
    name = d.pick(("x", "z"))
    tensor = d.x if name == "x" else d.z
    axis = d.axis()
    count = -(-tensor.shape[axis] // d.tile[axis])
    return d.pick((
        (f"{name}.shape[{axis}]", tensor.shape[axis]),
        (f"ct.num_tiles({name}.partition(t.shape), {axis})", count),
        (f"ct.get_num_tile_blocks()[{min(axis, 2)}]", d.grid[min(axis, 2)]),
    ))  # fmt: skip


def number(d: Drawer, depth: int) -> tuple[str, int]:
    """A plain number, and its value."""
    text, value = _known(d)
    for _ in range(depth):
        if d.flip():
            other, by = number(d, depth - 1)
        else:
            by = d.pick(FACTORS)
            other = str(by)
        form = d.pick(tuple(OPERATORS))
        forwards = d.flip()
        a, b = (value, by) if forwards else (by, value)
        if form in DIVISIONS and b == 0:
            continue
        result = OPERATORS[form](a, b)
        if abs(result) < MOST:
            text, value = form.format(*((text, other) if forwards else (other, text))), result
    return d.pick(((text, value), (f"(-{text})", -value), (f"abs({text})", abs(value))))


def computed(d: Drawer, name: str, step: str) -> list[str]:
    """Arithmetic of plain numbers, alone and beside a tile of i64."""
    text, value = number(d, 3)
    beside = f"ct.reduce_max(ct.constant(1, (2,), ct.i64) + {text}, 0)"
    return [
        d.pick((f"assert {text} == {value}, 'a number'", f"assert {beside} == {value + 1}, 'beside a tile'")),
        f"{name} = {step}",
    ]


def carried(d: Drawer, name: str, step: str) -> list[str]:
    """Plain numbers that loops and branches carry past 32 bits."""
    (text, value), count = _known(d), f"p_{name}"
    by = d.pick((2**29, 2**31 - 1, 10**9, 2**34))
    forms = (
        ([f"{count} = 0", f"for i in range({text}):", f"    {count} += {by}"], value * by),
        ([f"{count} = {text}", f"while {count} < {by}:", f"    {count} = {count} * 8"], _multiplied(value, by)),
        (["if n == 3:", f"    {count} = {text} * {by}", "else:", f"    {count} = {text}"], value * by),
        ([f"{count} = {text} * {by} if at[0] >= 0 else {text}"], value * by),
        ([f"{count} = 0", f"for i in range({text} * {by}, {text} * {by} + 3):", f"    {count} = i"], value * by + 2),
    )
    lines, wanted = d.pick(forms)
    return [*lines, f"assert {count} == {wanted}, 'carried'", f"{name} = {step}"]


def _multiplied(value: int, most: int) -> int:
    while value < most:
        value *= 8
    return value


def far(d: Drawer, name: str, step: str) -> list[str]:
    """A load at an index of 64 bits that lies outside, however it is known."""
    name_of, axis = d.pick(("x", "z")), d.axis()
    index = d.pick(FAR)
    text, value = _known(d)
    d.extra.setdefault(f"far_{FAR.index(index)}", Scalar(f"far_{FAR.index(index)}", i64, index))
    forms = (f"far_{FAR.index(index)}", f"({index})", f"({text} * 0 + {index})", f"({text} - {value} + {index})")
    along = ", ".join(d.pick(forms) if k == axis else "0" for k in range(d.rank))
    loads = [
        f"{name_of}.load_tile(t.shape, ({along},))",
        f"ct.gather({name_of}, ({along},)).broadcast(t.shape)",
    ]
    if d.unsafe_allowed:
        d.unsafe = True
        steps = tuple(2 * each for each in d.tile)
        views = f"{name_of}.partition(t.shape)", f"ct.make_strided_view({name_of}, t.shape, {steps})"
        loads += [f"{each}.load_unchecked(({along},))" for each in views]
    outside = f"ct.convert_tile({d.pick(loads)} != 0, ct.i32).reshape(({math.prod(d.tile)},))"
    return [f"assert ct.reduce_max({outside}, 0) == 0, 'padding'", f"{name} = {step}"]
