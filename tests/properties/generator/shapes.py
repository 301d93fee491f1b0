"""Expressions that move, fold and scan the elements of a tile, and give one of the same dtype and shape."""

from __future__ import annotations

from tests.properties.generator.drawer import Drawer
from tests.properties.generator.words import REDUCTIONS


def reduce(d: Drawer, tile: str, depth: int) -> str:
    """A sum or an extreme along an axis, broadcast again."""
    axis, name = d.axis(), d.pick(REDUCTIONS)
    scale = " * 0.125" if d.is_float and name == "sum" else ""
    return f"(ct.reduce_{name}({tile}, {axis}).reshape({d.kept(axis)}).broadcast(t.shape){scale})"


def fold(d: Drawer, tile: str, depth: int) -> str:
    """A reduction by a function of scalars, broadcast again; the places of extremes of what was loaded."""
    axis = d.axis()
    if d.flip():
        first = "lambda p, q: p if p[0] >= q[0] else q"
        places = f"ct.iota({d.tile[axis]}).reshape({d.along(axis)}).broadcast(t.shape)"
        made = f"ct.reduce(({d.pick(d.raw)}, {places}), {axis}, ({d.lowest()}, 0), {first})[1].astype(t.dtype)"
    elif d.is_float:
        made = f"ct.reduce({tile}, {axis}, 0.0, lambda p, q: p + q)"
    else:
        made = f"ct.reduce({tile}, {axis}, 0, lambda p, q: {d.pick(('p + q', 'p ^ q', 'p | q'))})"
    return f"({tile} + {made}.reshape({d.kept(axis)}){' * 0.125' if d.is_float else ''})"


def scan(d: Drawer, tile: str, depth: int) -> str:
    """Sums or extremes of all up to each place."""
    axis, order = d.axis(), d.pick(("ct.reverse.FORWARD", "ct.reverse.REVERSE"))
    if d.flip():
        return f"(ct.scan_sum({tile}, {axis}, {order}){' * 0.03125' if d.is_float else ''})"
    return f"ct.scan({d.pick(d.raw)}, {axis}, {order}, {d.lowest()}, lambda p, q: max(p, q))"


def order(d: Drawer, tile: str, depth: int) -> str:
    """A tile in order, or in the order of what was loaded; places of the largest of what was loaded."""
    axis, raw, down = d.axis(), d.pick(d.raw), d.pick(("", ", descending=True"))
    if d.flip():
        return f"ct.sort({tile}, {axis}{down})"
    if d.flip():
        return f"ct.take_along_axis({tile}, ct.argsort({raw}, {axis}{down}), {axis})"
    if d.flip():
        place = f"ct.{d.pick(('argmax', 'argmin'))}({raw}, {axis})"
    else:
        largest = f"ct.top_k({raw}, {d.number(1, d.tile[axis])}, {axis})[{d.number(0, 1)}]"
        place = f"ct.reduce_{d.pick(('max', 'min'))}({largest}, {axis})"
    return f"({tile} + {place}.astype(t.dtype).reshape({d.kept(axis)}){' * 0.125' if d.is_float else ''})"


def part(d: Drawer, tile: str, depth: int) -> str:
    """A part of two tiles side by side, at a place that is known now or when the kernel runs."""
    axis, at = d.axis(), d.pick(("0", "1", "n % 2", "n"))
    index = ", ".join(at if k == axis else "0" for k in range(d.rank))
    return f"ct.extract(ct.cat({tile}, {d.expression(depth - 1)}, {axis}), ({index},), t.shape)"


def shape(d: Drawer, tile: str, depth: int) -> str:
    """Axes exchanged and given back, or elements under another shape and back."""
    *leading, last = d.tile
    size = 1
    for each in d.tile:
        size *= each
    forms = [f"{{}}.reshape(({size},)).reshape(t.shape)"]
    if d.rank == 2:
        forms.append("ct.permute({}.transpose(), (1, 0))")
    if d.rank == 3:
        forms.append("ct.permute(ct.permute({}, (2, 0, 1)), (1, 2, 0))")
    if last % 2 == 0:
        swapped = (*range(len(leading)), d.rank, d.rank - 1)
        forms.append(f"ct.permute({{}}.reshape({(*leading, 2, last // 2)}), {swapped}).reshape(t.shape)")
    if d.rank >= 2 and d.tile[-1] == d.tile[-2]:
        forms.append(f"ct.permute({{}}, {(*range(d.rank - 2), d.rank - 1, d.rank - 2)})")
    return d.pick(forms).format(tile)
