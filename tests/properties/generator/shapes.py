"""Expressions that move, fold and scan the elements of a tile, and give one of the same dtype and shape."""

from __future__ import annotations

import math

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
    if math.prod(d.tile) * d.dtype.bits > 1024 * 32:  # more than a product's threads hold to sort, and refused
        return tile
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


def axes(d: Drawer, tile: str, depth: int) -> str:
    """Reductions along several axes, which are kept; means and variances of what was loaded."""
    some = tuple(axis for axis in range(d.rank) if d.flip())
    along = d.pick((str(some), "None")) if some else "None"
    if d.is_float and d.flip():
        return f"({tile} + ct.{d.pick(('mean', 'var'))}({d.pick(d.raw)}, {along}, keepdims=True) * 0.125)"
    if d.flip():
        flags = f"{d.condition()}.{d.pick(('any', 'all'))}({along}, keepdims=True)"
        return f"ct.select({flags}, {tile}, {d.expression(depth - 1)})"
    name = d.pick(REDUCTIONS)
    scale = " * 0.03125" if d.is_float and name == "sum" else ""
    return f"({tile} + ct.reduce_{name}({tile}, {along}, keepdims=True){scale})"


def reading(d: Drawer, tile: str, depth: int) -> str:
    """Folds and scans by functions that read a scalar or a tile of the kernel; integers, whose sums are exact."""
    axis = d.axis()
    if d.is_float:
        least = f"ct.reduce_min({d.pick(d.raw)}, {axis}, keepdims=True)"
        larger = f"[lambda p, q: max(max(p, q), least) for least in [{least}]][0]"
        return f"({tile} + ct.reduce({d.pick(d.raw)}, {axis}, float('-inf'), {larger}, keepdims=True))"
    factor = d.pick(("n", f"ct.reduce_max({d.pick(d.raw)}, {axis}, keepdims=True)"))
    function = f"[lambda p, q: p + q + p * q * factor.astype(p.dtype) for factor in [{factor}]][0]"
    if d.flip():
        return f"ct.scan({tile}, {axis}, {d.pick(('ct.reverse.FORWARD', 'ct.reverse.REVERSE'))}, 0, {function})"
    return f"({tile} ^ ct.reduce({tile}, {axis}, 0, {function}, keepdims=True))"


def running(d: Drawer, tile: str, depth: int) -> str:
    """Running sums, products and extremes by their names; of floats what rounding and order can change little."""
    axis, way = d.axis(), d.pick(("", ", reverse=True"))
    name = d.pick(("cumsum", "cummax") if d.is_float else ("cumsum", "cumprod", "cummax"))
    of = tile if not d.is_float or name == "cumsum" else d.pick(d.raw)
    return f"(ct.{name}({of}, {axis}{way}){' * 0.03125' if d.is_float and name == 'cumsum' else ''})"


def moved(d: Drawer, tile: str, depth: int) -> str:
    """Elements in another order, repeated, side by side, or in place of others."""
    axis = d.axis()
    index, place = (
        ", ".join(d.pick(("0", "n % 2", "n")) if k == axis else "0" for k in range(d.rank)) for _ in range(2)
    )
    two, three = f"{tile}, {d.pick(d.raw)}", f"({tile}, {d.pick(d.raw)}, {tile})"
    return d.pick((
        f"ct.flip({tile}, {d.pick((axis, None, (axis,)))})",
        f"ct.roll({tile}, {d.number(-5, 5)}, {axis})",
        f"ct.extract(ct.repeat({tile}, 2, {axis}), ({index},), t.shape)",
        f"ct.extract(ct.cat({three}, {axis}), ({index},), t.shape)",
        f"ct.extract(ct.insert(ct.cat({two}, {axis}), {d.tile_leaf()}, ({index},)), ({place},), t.shape)",
        f"ct.insert({tile}, ct.extract({d.pick(d.raw)}, ({index},), {d.kept(axis)}), ({place},))",
    ))  # fmt: skip


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
