"""Statements that read or write memory beside the kernel's result.

What they leave does not depend on the order of blocks: each block writes its own places, or all update the same ones by
an atomic operation whose order does not count.
"""

from __future__ import annotations

import math

from cutile.dtypes import bf16, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tests.properties.generator.arguments import LAYOUTS, Output, Pointer
from tests.properties.generator.drawer import Drawer
from tests.properties.generator.loads import indices, within
from tests.properties.generator.statements import Statement
from tests.properties.generator.words import ACCUMULATORS

INTEGERS = (i32, u8, i8, i16, i64, u16, u32, u64)
FLOATS = (f32, f16, bf16, f64)
DEPTHS = {32: (16, 32), 64: (16,)}
"""Of products, by bits: what more of operands that were computed a GPU's registers do not hold is refused."""
COUNTED = (i32, u32, i64, u64, f32, f64, f16, bf16)


def reload(d: Drawer, name: str, step: str) -> list[str]:
    """The result, written and read again."""
    return [d.store.format(name), f"{name} = {d.damped(f'{d.load} + {step}')}"]


def load_loop(d: Drawer, name: str, step: str) -> list[str]:
    """A loop over the tiles along one axis of a tensor."""
    view, axis = f"{d.pick(('x', 'z'))}.partition(t.shape)", d.axis()
    index = ", ".join("i" if k == axis else within(d, view, k) for k in range(d.rank))
    load = d.pick(("load(({},))", "load_pipelined(({},), 3)")).format(index)
    lines = [f"for i in range(ct.num_tiles({view}, {axis})):"]
    if d.flip():
        lines += [f"    if {d.pick(('i % 2 == 0', 'i < n', d.scalar_condition()))}:", f"        {name} = {step}"]
    return [*lines, f"    {name} = {d.damped(f'{name} + {view}.{load}')}"]


def product_loop(d: Drawer, name: str, step: str) -> list[str]:
    """A matrix product along x's rows, its second operand read by rows or by columns."""
    accumulator = ACCUMULATORS.get(d.dtype.name)
    if accumulator is None or d.dtype.name == "i32" or d.rank != 2 or d.tile[0] % 16 or d.tile[1] % 16:
        return load_loop(d, name, step)
    (rows, columns), depth = d.tile, d.pick(DEPTHS.get(d.dtype.bits, (16, 32, 64)))
    left = f"x.partition(({rows}, {depth}))"
    right, load = d.pick((
        (f"z.partition(({depth}, {columns}))", "{0}.load((k, {1}))"),
        (f"z.partition_permuted(({depth}, {columns}), (1, 0))", "{0}.load((k, {1}))"),
        (f"z.partition(({columns}, {depth}))", "{0}.load(({1}, k)).transpose()"),
    ))  # fmt: skip
    along = 1 if load.endswith("transpose()") else 0
    first, second = within(d, left, 0), within(d, right, 1 - along, 1)
    acc = f"acc_{name}"
    operand = d.pick((f"{left}.load(({first}, k))", f"max({left}.load(({first}, k)), 0)"))
    return [
        f"{acc} = ct.constant(0, ({rows}, {columns}), ct.{accumulator})",
        f"for k in range(min(ct.num_tiles({left}, 1), ct.num_tiles({right}, {along}))):",
        *([f"    if {d.pick(('k != 1', 'n > k'))}:", "        pass"] if d.flip() else []),
        f"    {acc} = ct.mma({operand}, {load.format(right, second)}, {acc})",
        f"{name} = {name} + ct.convert_tile({acc}, t.dtype){' * 0.03125' if d.is_float else ''}",
    ]


def second_output(d: Drawer, name: str, step: str) -> list[str]:
    """Another output, of another dtype; of what was computed, or of its extremes along an axis."""
    if not d.alone or d.rank > len(d.grid):
        return reload(d, name, step)
    output = d.extra.get("w")
    if output is None:
        dtype = d.pick((d.dtype, *FLOATS, *INTEGERS, f8e4m3fn, f8e5m2))
        axis = d.number(-1, d.rank - 1)
        tile = d.tile if axis < 0 else (*d.tile[:axis], 1, *d.tile[axis + 1 :])
        shape = tuple(max(1, g * e - d.number(0, e - 1)) for g, e in zip(d.grid, tile, strict=False))
        output = d.extra["w"] = Output("w", dtype, shape, d.pick(LAYOUTS), tile=tile)
    assert isinstance(output, Output)
    exact = d.is_float and output.dtype.kind != "float"  # what rounds differently may not decide on an integer
    value = d.pick(d.raw) if exact else d.pick((name, step))
    reduced = output.tile != d.tile
    if reduced:
        axis = next(k for k, (a, b) in enumerate(zip(output.tile, d.tile, strict=True)) if a != b)
        value = f"ct.reduce_{d.pick(('max', 'min'))}({value}, {axis}).reshape({output.tile})"
    value = f"ct.convert_tile({value}, w.dtype)"
    if reduced or d.flip():
        return [f"w.store({value})"]
    places = [
        f"at[{k}] * {each} + ({d.pick((str(each - 1) + ' - ', ''))}ct.iota({each}).reshape({d.along(k)}))"
        for k, each in enumerate(d.tile)
    ]
    mask = f", mask={d.condition()}" if d.flip() else ""
    return [f"ct.scatter(w, ({', '.join(places)},), {value}{mask})"]


def pieces(d: Drawer, name: str, step: str) -> list[str]:
    """The block's own tile, gone through in smaller ones."""
    if not d.alone:
        return reload(d, name, step)
    tile = tuple(d.number(1, each) if each < 8 else d.pick((each, each // 2, each // 4, 3)) for each in d.tile)
    axis, view = d.axis(), f"out.partition_mut({tile})"
    index = ", ".join("i" if k == axis else d.pick(("0", f"ct.num_tiles({view}, {k}) - 1")) for k in range(d.rank))
    change = d.damped(f"part_{name}.load(({index},)) + {d.pick(('a', '1'))}")
    return [
        d.store.format(name),
        f"part_{name} = {view}",
        f"for i in range(ct.num_tiles(part_{name}, {axis})):",
        f"    part_{name}.store({change}, ({index},))",
        f"{name} = {d.load}",
    ]


def counters(d: Drawer, name: str, step: str) -> list[str]:
    """Elements that all blocks update, each any number of times, by one operation."""
    output = d.extra.get("counts")
    if output is None:
        dtype = d.pick(COUNTED)
        d.updates = "add" if dtype.kind == "float" else d.pick(("add", "and", "or", "xor", "max", "min"))
        rank = max([k + 1 for k, each in enumerate(d.grid) if each > 1], default=1)
        tile = tuple(d.number(1, 6) for _ in range(rank))
        shape = tuple(g * e for g, e in zip(d.grid, tile, strict=False))
        output = d.extra["counts"] = Output("counts", dtype, shape, d.pick(LAYOUTS), whole=True, tile=tile)
    assert isinstance(output, Output)
    if d.number(0, 3) == 3:
        return [_whole_tile(d, output)]
    value = d.pick(d.raw)
    if output.dtype.kind == "float":  # sums that are the same in any order: exact, or of ones
        value = f"ct.select({d.condition()}, 1, 0)" if output.dtype.bits == 16 else f"ct.floor({value})"
        if not d.is_float and output.dtype.bits > 16:
            value = d.pick(d.raw)
    mask = f", mask={d.condition()}" if d.flip() else ""
    value = f"ct.convert_tile({value}, counts.dtype)"
    return [f"ct.atomic_{d.updates}(counts, {indices(d, output.shape)}, {value}{mask})"]


def _whole_tile(d: Drawer, counts: Output) -> str:
    """All elements of a tile updated at once, wherever the tile is."""
    index = ", ".join(
        d.pick(("0", "1", f"ct.get_tile_block_id()[{axis}]", f"ct.num_tiles(counts, {axis}) - 1"))
        for axis in range(len(counts.tile))
    )
    mode = d.updates.upper()
    if counts.dtype.kind == "float":
        mode = "ADDF"
    elif counts.dtype.kind == "uint" and mode in ("MAX", "MIN"):
        mode = f"U{mode}"
    ones = counts.dtype.kind == "float" and counts.dtype.bits == 16  # sums of others depend on their order
    value = f"ct.constant({'1' if ones else d.pick(('1', '3'))}, counts.shape, counts.dtype)"
    return f"ct.atomic_red_view_tko(counts, {value}, ({index},), ct.atomic.{mode})"


def by_address(d: Drawer, name: str, step: str) -> list[str]:
    """The block's own part of an array, written by address and read again in the order that a token gives."""
    if not (d.alone and d.unsafe_allowed) or d.rank > len(d.grid):  # of more axes the grid does not tell the tiles
        return counters(d, name, step)
    d.unsafe = True
    size = math.prod(d.tile)
    d.extra.setdefault("q", Pointer("q", d.dtype, math.prod(d.grid) * size + 3, True))
    own = "at[0]"
    for axis in range(1, d.rank):
        own = f"({own} * {d.grid[axis]} + at[{axis}])"
    lanes = d.pick(("{}", f"({size - 1} - {{}})")).format(f"ct.iota({size}).reshape(t.shape)")
    where, mask = f"q_{name} = q + ({own} * {size} + {lanes})", d.condition()
    return [
        where,
        d.pick((
            f"token = ct.store_ptr_tko(q_{name}, {name}, mask={mask})",
            f"token = ct.store_ptr_tko(q_{name}, {name})",
        )),
        f"back, _ = ct.load_ptr_tko(q_{name}, mask={d.condition()}, token=token)",
        f"{name} = {d.damped(f'back + {name}')}",
    ]  # fmt: skip


MEMORY: tuple[Statement, ...] = (reload, load_loop, product_loop, second_output, pieces, counters, by_address)
