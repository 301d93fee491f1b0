"""Expressions that read memory: each gives a tile of the kernel's dtype and shape.

Tiles that a partition has are named by an index within it, whichever way that is known: by arithmetic that the compiler
can follow, or by what it has to check. Other accesses may leave the tensor, where they find padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import strategies as st

from cutile.dtypes import bf16, bool_, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tests.properties.generator.arguments import LAYOUTS, Input, Pointer, Tensors
from tests.properties.generator.drawer import Drawer

PADDINGS = ("ZERO", "NEG_ZERO", "POS_INF", "NEG_INF")
OTHERS = (f32, i32, u8, f16, bf16, f64, i8, i16, i64, u16, u32, u64, bool_, f8e4m3fn, f8e5m2)


def within(d: Drawer, view: str, axis: int, wish: int | None = None) -> str:
    """The index of a tile that the partition `view` has along an axis."""
    tiles = f"ct.num_tiles({view}, {axis})"
    at = f"at[{min(axis if wish is None else wish, d.rank - 1)}]"
    forms = ("0", f"min({at}, {tiles} - 1)", f"{tiles} - 1", f"{at} % {tiles}", f"({at} + n) % {tiles}")
    return d.pick(forms)


def named(d: Drawer, view: str) -> str:
    """The index of a tile that a partition of the tile's rank has."""
    return "(" + ", ".join(within(d, view, axis) for axis in range(d.rank)) + ",)"


def anywhere(d: Drawer) -> str:
    """The index of a tile that need not be there."""
    forms = ("at[{0}]", "0", "at[{0}] + 1", "at[{0}] - 1", "n", "-1")
    return "(" + ", ".join(d.pick(forms).format(axis) for axis in range(d.rank)) + ",)"


def padding(d: Drawer) -> str:
    """What lies past the edges; numbers alone, so that comparisons and folds stay what they are."""
    return f"ct.padding.{d.pick(PADDINGS if d.is_float else PADDINGS[:1])}"


def permutation(d: Drawer) -> str:
    """An order of the axes."""
    return str(tuple(d.draw(st.permutations(range(d.rank)))))


def partition(d: Drawer) -> str:
    """A tile of a partition, with padding of choice."""
    view = f"{d.pick(('x', 'z'))}.partition(t.shape, {padding(d)})"
    load = d.pick(("{}.load({})", "{}.load_pipelined({}, 2)", "ct.load_view_tko({}, {}, tma=ct.tma.DISABLED)"))
    return load.format(view, named(d, view))


def permuted(d: Drawer) -> str:
    """A tile whose axes are in another order than the tensor's."""
    view = f"{d.pick(('x', 'z'))}.partition_permuted(t.shape, {permutation(d)})"
    return f"{view}.load({named(d, view)})"


def controlled(d: Drawer) -> str:
    """A partition with all that may be chosen."""
    view = f"ct.make_partition_view({d.pick(('x', 'z'))}, t.shape, {padding(d)}, {permutation(d)})"
    return f"ct.load_view_tko({view}, {named(d, view)}, latency=ct.Latency({d.number(1, 4)}))"


def windows(d: Drawer) -> str:
    """Windows that overlap, or leave elements out."""
    steps = tuple(d.number(1, each + 2) for each in d.tile)
    order = f", dim_map={permutation(d)}" if d.flip() else ""
    view = f"ct.make_strided_view({d.pick(('x', 'z'))}, t.shape, {steps}, {padding(d)}{order})"
    return f"ct.load_strided_view_tko({view}, {named(d, view)})"


def unchecked(d: Drawer) -> str:
    """A tile that need not be there."""
    return f"{d.pick(('x', 'z'))}.load_tile(t.shape, {anywhere(d)}, {padding(d)})"


def begun(d: Drawer) -> str:
    """Windows the first of which begins before the tensor, or behind its begin."""
    steps = tuple(d.number(1, each + 2) for each in d.tile)
    starts = tuple(d.number(-3, 2) if extent > 2 else d.number(-3, 0) for extent in map(min, d.x.shape, d.z.shape))
    view = f"ct.make_strided_view({d.pick(('x', 'z'))}, t.shape, {steps}, {padding(d)}, starts={starts})"
    return f"{view}.load({named(d, view)})"


def bounds(d: Drawer) -> str:
    """The bounds of a slice, some known when the kernel runs; there is an element between them, or none."""
    first = d.pick(("0", "1", "n - 2", "-2", "at[0]", "None", "-n"))
    return f"{first}, {d.pick(('n', '-1', 'None', 'at[0] + 2', '2147483647', '-n + 1'))}"


def sliced(d: Drawer) -> str:
    """A tile of a tensor that is cut along an axis, or two."""
    tensor = d.pick(("x", "z"))
    for _ in range(d.number(1, 2)):
        tensor += f".slice({d.axis()}, {bounds(d)})"
    return f"{tensor}.load_tile(t.shape, {anywhere(d)}, {padding(d)})"


def either(d: Drawer) -> str:
    """A tile of one tensor or another, as is decided when the kernel runs."""
    tensor = d.pick((
        f"(x if {d.scalar_condition()} else z)",
        f"(z if {d.scalar_condition()} else x.slice({d.axis()}, 0, n))",
        "(x, z)[n % 2]",
        "(z, x, z)[at[0] % 3]",
    ))  # fmt: skip
    return f"{tensor}.load_tile(t.shape, {anywhere(d)}, {padding(d)})"


def turned(d: Drawer) -> str:
    """A tile of other extents, brought into shape."""
    if d.rank == 1:
        return partition(d)
    axes = (*range(d.rank - 2), d.rank - 1, d.rank - 2)
    view = f"{d.pick(('x', 'z'))}.partition({tuple(d.tile[k] for k in axes)})"
    return f"ct.permute({view}.load({named(d, view)}), {axes})"


def other_dtype(d: Drawer) -> str:
    """A tile of another dtype, converted."""
    dtype = d.pick(OTHERS)
    name = f"e_{dtype.name}"
    shape = d.x.shape
    d.extra.setdefault(name, Input(name, dtype, shape, d.pick(LAYOUTS[:3])))
    view = f"{name}.partition(t.shape)"
    tile = f"{view}.load({named(d, view)})"
    if dtype.kind == "storage":
        tile = f"ct.convert_tile({tile}, ct.f32)"
    return f"ct.convert_tile({tile}, t.dtype)"


# Elements at any indices.


def lanes(d: Drawer, axis: int, extent: int) -> str:
    """Indices along one axis of some tensor, as a tile of i32 that broadcasts to the kernel's tiles."""
    own = min(axis, d.rank - 1)
    places = f"ct.iota({d.tile[own]}).reshape({d.along(own)})"
    data = f"ct.convert_tile({d.pick(d.raw)}, ct.i32)"
    return d.pick((
        places, f"({places} + at[{own}] * {d.tile[own]})", f"({extent - 1} - {places})", f"({places} * 3 - n)",
        data, f"({data} % {extent})", f"({places} + {data})",
        # beyond the last number, and round to the least one
        f"({places} + {d.pick(('2147483647', '2147483646'))} - at[{own}])",
        f"(ct.convert_tile({places}, ct.i64) + {d.pick((2**63 - 1, 2**63 - 2, 2**32, -(2**63), -1))})",
    ))  # fmt: skip


def indices(d: Drawer, extents: tuple[int, ...]) -> str:
    """One index tile for each axis of a tensor; one has the whole shape of the kernel's tiles."""
    whole = d.number(0, len(extents) - 1)
    indices = [
        f"({lanes(d, axis, extent)}).broadcast(t.shape)"
        if axis == whole
        else d.pick(("0", "n", f"{extent - 1}", "at[0]", lanes(d, axis, extent)))
        for axis, extent in enumerate(extents)
    ]
    return f"({', '.join(indices)},)"


def gather(d: Drawer) -> str:
    """Elements at any indices, some of them nowhere."""
    name = d.pick(("x", "z"))
    extents = d.x.shape if name == "x" else d.z.shape
    mask = f", mask={d.condition()}" if d.flip() else ""
    other = f", padding_value={d.pick(('1', 'a'))}" if d.flip() else ""
    return f"ct.gather({name}, {indices(d, extents)}{mask}{other})"


def chosen_rows(d: Drawer) -> str:
    """A tile whose places along one axis are chosen one by one."""
    name, axis = d.pick(("x", "z")), d.axis()
    extent = (d.x if name == "x" else d.z).shape[axis]
    places = f"ct.iota({d.tile[axis]})"
    chosen = d.pick((f"{extent - 1} - {places}", f"{places} * 2", f"({places} * 5 + n) % {extent}", f"{places} - 1"))
    index = ", ".join(chosen if k == axis else d.pick((f"at[{k}]", "0")) for k in range(d.rank))
    return f"ct.load_gather_scatter_view_tko(ct.make_gather_scatter_view({name}, t.shape, {axis}), ({index},))[0]"


# By address.


def _pointer(d: Drawer) -> tuple[str, int]:
    size = 2 * math.prod(d.tile) + 5
    d.extra.setdefault("p", Pointer("p", d.dtype, size))
    d.unsafe = True
    return "p", size


def by_address(d: Drawer) -> str:
    """Elements at addresses, under a mask."""
    name, size = _pointer(d)
    places = f"ct.iota({math.prod(d.tile)}).reshape(t.shape)"
    start = d.pick(("at[0]", "n", "0", "at[0] - 1"))
    places = d.pick((f"({places} + {start})", f"({places} * 2 - {start})", f"({places} * 3 % {size})"))
    mask = f"({places} >= 0) & ({places} < {size})"
    return d.pick((
        f"({name} + {places}).load(mask={mask}, pad={d.pick(('1', 'a'))})",
        f"ct.load_ptr_tko({name}.offset_tile({places}), mask={mask} & {d.condition()})[0]",
        f"ct.load_ptr_tko({name} + abs({places}) % {size}, ct.ordering.RELAXED)[0]",
    ))  # fmt: skip


def tensor_by_address(d: Drawer) -> str:
    """A tile of a tensor made of a pointer."""
    name, _ = _pointer(d)
    extents = tuple(max(1, each - d.number(0, 1)) for each in d.tile)
    strides = tuple(math.prod(d.tile[k + 1 :]) for k in range(d.rank))
    view = f"ct.make_tensor_view({name} + {d.number(0, 3)}, {extents}, {strides}).partition(t.shape, {padding(d)})"
    return f"{view}.load({named(d, view)})"


def tensor_in_memory(d: Drawer) -> str:
    """A tile of a tensor whose address is an element of another tensor."""
    known = d.extra.setdefault("many", Tensors("many", d.dtype, 2, d.tile))
    assert isinstance(known, Tensors)
    d.unsafe = True
    strides = tuple(math.prod(d.tile[k + 1 :]) for k in range(d.rank))
    view = f"ct.load_tensor(many, {d.pick(('0', 'at[0] % 2', 'n % 2'))}, {d.tile}, {strides}, t.dtype)"
    return f"{view}.partition(t.shape).load({(0,) * d.rank})"


def no_check(d: Drawer) -> str:
    """A tile of a partition that need not be there."""
    d.unsafe = True
    return f"{d.pick(('x', 'z'))}.partition(t.shape, {padding(d)}).load_unchecked({anywhere(d)})"


SAFE: tuple[Callable[[Drawer], str], ...] = (
    partition, permuted, controlled, windows, unchecked, turned, other_dtype, gather, chosen_rows, begun, sliced,
    either,
)  # fmt: skip
UNSAFE: tuple[Callable[[Drawer], str], ...] = (*SAFE, by_address, tensor_by_address, tensor_in_memory, no_check)


def memory(d: Drawer, tile: str, depth: int) -> str:
    """What was computed with something else that is read."""
    read = d.pick(UNSAFE if d.unsafe_allowed else SAFE)(d)
    return d.pick(("max({}, {})", "({} + {})", "ct.select(t > u, {}, {})", "min({1}, {0})")).format(tile, read)
