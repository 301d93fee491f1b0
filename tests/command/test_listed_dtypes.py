"""The element types that `python -m cutile ops` lists for an operation are those that a kernel may use it with."""

from __future__ import annotations

import pytest

from cutile.command.ops import Entry, catalogue
from cutile.dtypes import EVERY_DTYPE, DTypeLike, f4e2m1fnx2, i32, i64, u64
from cutile.errors import KernelError
from cutile.frontend.build import build
from cutile.frontend.source import take_source
from cutile.ir.types import MutType, TileType, Type
from tests.support.kernels import define
from tests.support.programs import mut, tensor

HEAD = "def k(y: Mut, z: ct.MappedPartitionMut, x: Tensor, m: Tensor, i: Tensor, addresses: Tensor, p: ct.Ptr):\n"
BODY = """    part, own = x.partition((8,)), y.partition_mut((4,))
    t, u, a = x.load_tile((8,), (0,)), x.load_tile((8,), (1,)), m.load_tile((16, 32), (0, 0))
    index, bits = i.load_tile((8,), (0,)), i.load_tile((8,), (0,)) > 0
"""

CALLS: dict[str, str] = {  # what is not a call with one tile or two
    "argmax": "ct.argmax(t, 0)", "argmin": "ct.argmin(t, 0)", "top_k": "ct.top_k(t, 3)",
    "take_along_axis": "ct.take_along_axis(t, index, 0)",
    "Partition.load": "part.load(0)", "Partition.load_index": "for j in z.iter_indices():\n        part.load_index(j)",
    "Partition.load_pipelined": "part.load_pipelined(0)", "Partition.load_unchecked": "part.load_unchecked(0)",
    "PartitionMut.store": "own.store(x.load_tile((4,), (0,)), 0)", "Mut.load": "y.load()", "Mut.store": "y.store(t)",
    "PartitionMut.store_unchecked": "own.store_unchecked(x.load_tile((4,), (0,)), 0)",
    "Tensor.load_tile": "x.load_tile((8,), (0,))", "Tensor.partition": "x.partition((8,))",
    "Tensor.partition_permuted": "m.partition_permuted((8, 8), (1, 0))", "Mut.partition_mut": "y.partition_mut((4,))",
    "Mut.partition_full_mut": "y.partition_full_mut((4,))", "Ptr.load": "p.load()", "Ptr.store": "p.store(p.load())",
    "clamp": "ct.clamp(t, 0, u)", "cummax": "ct.cummax(t, 0)", "cumprod": "ct.cumprod(t, 0)",
    "cumsum": "ct.cumsum(t, 0)", "insert": "ct.insert(t, ct.extract(t, (0,), (4,)), (0,))",
    "philox": "ct.philox(1, t)", "rand": "ct.rand(1, t)", "randint": "ct.randint(1, t, 0, 6)",
    "randn": "ct.randn(1, t)", "repeat": "ct.repeat(t, 2, 0)", "roll": "ct.roll(t, 1, 0)",
    "Tile.all": "t.all()", "Tile.any": "t.any()",
    "Tile.astype": "t.astype(f32)", "Tile.broadcast": "t.broadcast((8,))", "Tile.reshape": "t.reshape((2, 4))",
    "Tile.transpose": "a.transpose()", "Tile.pack": "t.pack()", "Tile.unpack": "t.unpack()",
    "assume_bounds": "ct.assume_bounds(t, 0, 7)",
    "assume_bounds_lower": "ct.assume_bounds_lower(t, 0)", "assume_bounds_upper": "ct.assume_bounds_upper(t, 7)",
    "assume_div_by": "ct.assume_div_by(t, 4)", "assume_same_elements": "ct.assume_same_elements(t, (2,))",
    "assume_div_by_every_along": "ct.assume_div_by_every_along(t, 4, 2, 0)", "atomic_add": "ct.atomic_add(y, index, t)",
    "atomic_cas": "ct.atomic_cas(y, index, t, t)", "atomic_cas_tko": "ct.atomic_cas_tko(p, p.load(), p.load())",
    "bitcast": "ct.bitcast(t, ct.{bits})", "broadcast": "ct.broadcast(t, (8,))", "cat": "ct.cat(t, u, 0)",
    "broadcast_scalar": "ct.broadcast_scalar(p.load(), (8,))", "cmpf": "ct.cmpf(t, u, ct.predicate.EQUAL)",
    "cmpi": "ct.cmpi(t, u, ct.predicate.EQUAL)", "constant": "ct.constant(1, (8,), x.dtype)",
    "convert_scalar": "ct.convert_scalar(p.load(), f32)", "convert_tile": "ct.convert_tile(t, f32)",
    "cuda_tile_assert": "ct.cuda_tile_assert(t)", "cuda_tile_print": "ct.cuda_tile_print('{}', t)",
    "exti": "ct.exti(t, i64)", "extract": "ct.extract(t, (0,), (4,))", "fma": "ct.fma(t, u, t)",
    "ftof": "ct.ftof(t, f32)", "ftoi": "ct.ftoi(t, i32)", "gather": "ct.gather(x, index)", "itof": "ct.itof(t, f32)",
    "get_index_space_shape": "ct.get_index_space_shape(part)", "get_tensor_shape": "ct.get_tensor_shape(x)",
    "iota": "ct.iota((8,), x.dtype)", "load_ptr_tko": "ct.load_ptr_tko(p)", "load_tile": "ct.load_tile(x, (8,), (0,))",
    "load_gather_scatter_view_tko":
        "ct.load_gather_scatter_view_tko(ct.make_gather_scatter_view(x, (8,)), (index,))",
    "store_gather_scatter_view_tko":
        "ct.store_gather_scatter_view_tko(ct.make_gather_scatter_view(y, (8,)), t, (index,))",
    "load_strided_view_tko": "ct.load_strided_view_tko(ct.make_strided_view(x, (8,), (2,)), 0)",
    "load_tensor": "ct.load_tensor(addresses, 0, (8,), (1,), x.dtype)", "load_tile_like": "ct.load_tile_like(x, y)",
    "load_tile_mut": "ct.load_tile_mut(y)", "load_view_tko": "ct.load_view_tko(part, 0)",
    "make_gather_scatter_view": "ct.make_gather_scatter_view(x, (8,))",
    "make_partition_view": "ct.make_partition_view(x, (8,))",
    "make_partition_view_mut": "ct.make_partition_view_mut(y, (8,))",
    "make_strided_view": "ct.make_strided_view(x, (8,), (2,))",
    "make_tensor_view": "ct.make_tensor_view(p, (8,), (1,))", "num_tiles": "ct.num_tiles(part, 0)",
    "permute": "ct.permute(a, (1, 0))", "transpose": "ct.transpose(a)",
    "print_tko": "ct.print_tko('{}', t)", "reduce": "ct.reduce(t, 0, 0, lambda v, w: w)",
    "reduce_max": "ct.reduce_max(t, 0)", "reduce_min": "ct.reduce_min(t, 0)", "reduce_prod": "ct.reduce_prod(t, 0)",
    "reduce_sum": "ct.reduce_sum(t, 0)", "reshape": "ct.reshape(t, (2, 4))", "scan_sum": "ct.scan_sum(t, 0)",
    "scan": "ct.scan(t, 0, ct.reverse.FORWARD, 0, lambda v, w: w)", "scatter": "ct.scatter(y, index, t)",
    "select": "ct.select(bits, t, u)", "store_ptr_tko": "ct.store_ptr_tko(p, p.load())",
    "store_tile": "ct.store_tile(y, t)", "trunci": "ct.trunci(t, i8)", "unpack": "ct.unpack(t, {unpacked})",
    "store_view_tko": "ct.store_view_tko(own, x.load_tile((4,), (0,)), 0)",
    "MappedPartitionMut.load": "for j in z.iter_indices():\n        z.load(j)",
    "MappedPartitionMut.store": "for j in z.iter_indices():\n        z.store(t, j)",
    "PartitionMut.store_index": "for j in z.iter_indices():\n        y.partition_full_mut((8,)).store_index(t, j)",
}  # fmt: skip

PRODUCTS = {"mma", "mmaf", "mmai", "mmaf_scaled"}  # which pairs of types multiply: tests/ops/test_products.py


def listed() -> list[Entry]:
    return [each for each in catalogue() if each.dtypes and each.name not in PRODUCTS]


def call_of(entry: Entry) -> str:
    """A statement that uses it with elements of the kernel's dtype."""
    name = entry.name
    if name in CALLS:
        return CALLS[name]
    if not name.isidentifier():
        return name.replace("x", "t").replace("y", "u").replace("matu", "max") if "(" not in name else PYTHON[name]
    if name == "atomic_red_view_tko":
        return f"ct.{name}(y, t, 0, ct.atomic.{{mode}})"
    if name == "atomic_rmw_tko":
        return f"ct.{name}(p, p.load(), ct.atomic.{{mode}})"
    if name.startswith("atomic_"):
        return f"ct.{name}(y, index, t)"
    return f"ct.{name}(t, u)" if ", y:" in entry.signature or ", b:" in entry.signature else f"ct.{name}(t)"


PYTHON = {"abs(x)": "abs(t)", "round(x)": "round(t)", "max(x, y)": "max(t, u)", "min(x, y)": "min(t, u)"}


def compiles(call: str, dtype: DTypeLike) -> bool:
    mode, unpacked = ("ADDF" if dtype.kind == "float" else "XCHG"), ("None" if dtype is f4e2m1fnx2 else "f32")
    filled = call.replace("{mode}", mode).replace("{bits}", f"u{dtype.bits}").replace("{unpacked}", unpacked)
    function = define(HEAD + BODY + f"    {filled}\n")
    x = tensor(1, dtype)
    types: dict[str, Type] = {
        "y": mut(8, dtype=dtype), "z": MutType(x, (8,), (1,)), "x": x, "m": tensor(2, dtype), "i": tensor(1, i32),
        "addresses": tensor(1, i64), "p": TileType(u64),
    }  # fmt: skip
    try:
        build(function, take_source(function), types, {}, unsafe=True, pointers={"p": dtype})
    except KernelError as error:
        print(dtype, error)
        return False
    return True


@pytest.mark.parametrize("entry", listed(), ids=lambda entry: entry.name)
def test_what_is_listed_compiles_and_nothing_else(entry: Entry) -> None:
    assert compiles("pass", i32)
    found = tuple(dtype.name for dtype in EVERY_DTYPE if compiles(call_of(entry), dtype))
    assert found == entry.dtypes
