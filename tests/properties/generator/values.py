"""Expressions that compute: each takes a tile's text and gives one of the same dtype and shape."""

from __future__ import annotations

from tests.properties.generator.drawer import Drawer
from tests.properties.generator.words import (
    ACCUMULATORS,
    FLOAT_BINARY,
    FLOAT_UNARY,
    INT_BINARY,
    INT_UNARY,
    OVERFLOWS,
    UINT_UNARY,
)


def leaf(d: Drawer, tile: str, depth: int) -> str:
    """The tile itself."""
    return tile


def binary(d: Drawer, tile: str, depth: int) -> str:
    """An operator of two tiles, or of a tile and a number."""
    other = d.leaf() if d.flip() else d.expression(depth - 1)
    form = d.pick(FLOAT_BINARY if d.is_float else INT_BINARY)
    return form.format(tile, other) if d.flip() else form.format(other, tile)


def unary(d: Drawer, tile: str, depth: int) -> str:
    """A function of one tile."""
    return d.pick(FLOAT_UNARY if d.is_float else UINT_UNARY if d.dtype.kind == "uint" else INT_UNARY).format(tile)


def overflow(d: Drawer, tile: str, depth: int) -> str:
    """Integers past the ends of their dtype, in what an optimiser may fold that takes an overflow to be impossible."""
    if d.is_float:
        return tile
    near = f"({d.pick(d.raw)} {d.pick(('+', '-', '*'))} {d.pick(('t.dtype.max', 't.dtype.min'))})"
    return f"({tile} ^ {d.pick(OVERFLOWS).format(near, tile, d.pick(d.raw))})"


def select(d: Drawer, tile: str, depth: int) -> str:
    """One of two, element by element."""
    return f"ct.select({d.condition()}, {tile}, {d.expression(depth - 1)})"


def choice(d: Drawer, tile: str, depth: int) -> str:
    """One of two, the whole tile."""
    return f"({tile} if {d.scalar_condition()} else {d.expression(depth - 1)})"


def convert(d: Drawer, tile: str, depth: int) -> str:
    """There and back, where no backend rounds differently: what was loaded, or integers."""
    raw = d.pick(d.raw)
    if d.is_float:
        through = d.pick(("i32", "i16", "f64", "f32", "f8e4m3fn", "f8e5m2", "bf16", "f16"))
        return f"(({tile} + ct.convert_tile(ct.convert_tile({raw}, ct.{through}), t.dtype)) * 0.5)"
    through = d.pick(("i8", "u16", "i64", "u32", "f64"))
    if through == "f64":  # holds what was loaded exactly
        return f"({tile} + ct.convert_tile(ct.convert_tile({raw}, ct.f64), t.dtype))"
    return f"({tile} ^ ct.convert_tile(ct.convert_tile({tile}, ct.{through}), t.dtype))"


def iota(d: Drawer, tile: str, depth: int) -> str:
    """The places along an axis."""
    axis = d.axis()
    places = f"ct.convert_tile(ct.iota({d.tile[axis]}), t.dtype).reshape({d.along(axis)})"
    return f"({tile} + {places}{' * 0.125' if d.is_float else ''})"


def random(d: Drawer, tile: str, depth: int) -> str:
    """Random numbers by the places along an axis; the same bits everywhere."""
    axis = d.axis()
    counter = f"ct.iota({d.tile[axis]}).reshape({d.along(axis)})"
    seed, other = d.pick(("7", "n", "2**40 + 3")), d.pick(("0", "at[0]", "n"))
    if d.is_float:
        return f"({tile} + ct.rand({seed}, {counter}, {other}).astype(t.dtype))"
    if d.flip():
        return f"({tile} ^ ct.randint({seed}, {counter}, -3, {d.pick(('5', 'n'))}, {other}).astype(t.dtype))"
    return f"({tile} ^ ct.philox({seed}, {counter}, {other})[{d.number(0, 3)}].astype(t.dtype))"


def tests(d: Drawer, tile: str, depth: int) -> str:
    """What is asked of floats as loaded: which are whole, finite, NaN. Integers round to themselves."""
    raw = d.pick(d.raw)
    if not d.is_float:
        return f"round({tile})"
    return d.pick((
        f"({tile} + round({raw} * 0.5))",
        f"ct.select(ct.isnan({raw} / ({raw} - round({raw}))), {tile}, {d.expression(depth - 1)})",
        f"ct.select(ct.isfinite(1.0 / round({raw})), {tile}, {d.expression(depth - 1)})",
        f"ct.select(ct.isinf(1.0 / ({raw} - 1.0)), {tile}, {d.expression(depth - 1)})",
    ))  # fmt: skip


def product(d: Drawer, tile: str, depth: int) -> str:
    """A product of two tiles as loaded, of any extents; of bytes, where 32 bits are computed with."""
    accumulator = ACCUMULATORS.get(d.dtype.name)
    if accumulator is None or d.rank != 2:
        return tile
    if d.dtype.bits >= 32 and max(d.tile) > 64:  # more than a GPU's registers hold, and refused
        return tile
    left, right = d.pick(d.raw), d.pick(d.raw)
    if d.dtype.name == "i32":
        through = d.pick(("i8", "u8"))
        left, right = (f"ct.convert_tile({each}, ct.{through})" for each in (left, right))
    acc = f"ct.constant(0, ({d.tile[0]}, {d.tile[0]}), ct.{accumulator})"
    plain = f"ct.mma({left}, {right}.transpose(), {acc})" if d.flip() else f"({left} @ {right}.transpose())"
    made = f"ct.convert_tile({plain}, t.dtype)"
    if d.tile[0] != d.tile[1]:
        made = f"ct.reduce_max({made}, 1).reshape((-1, 1))"
    return f"({tile} + {made}{' * 0.03125' if d.is_float else ''})"
