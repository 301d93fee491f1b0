"""Kernels and launches with mistakes that a type checker finds: one in each line that says so."""

from typing import NamedTuple

import cutile as ct
from cutile import Const, Mut, SharedMut, Tensor, api, f32


@ct.entry
def saxpy(y: Mut, a: f32, x: Tensor, *, K: Const = 3):
    t = ct.load_tile_like(x, y) - "a"  # error
    t = t.reshpe((4,))  # error
    y.store(t.shape)  # error
    y.store(max(y.load(), "0"))  # error
    y.store(x.partition((4,)).inside("0"))  # error


@ct.entry(unsafe=True)
def assumed(p: ct.Ptr[f32], n: ct.i32):
    ct.assume_div_by(p, 16)
    ct.assume_bounds(n, 0, 3)
    ct.assume_bounds(p, 0, 3)  # error: addresses have no bounds
    ct.assume_bounds_lower(p, 0)  # error
    ct.assume_bounds_upper(p, 3)  # error


@ct.entry
def total(y: SharedMut, x: Tensor):
    y.store(1.0)  # error
    ct.atomic_add(y, 0, x)  # error


x = api.ones((8, 8), f32).sync()
y = api.zeros((8, 8), f32).sync()
part = y.mut.partition((4, 4))
saxpy(x, 2.0, x)  # error: a tensor for a Mut
saxpy(part, "2", x)  # error
saxpy(part, 2.0, [1.0])  # error
saxpy(part, 2.0, part)  # error: a partition for a Tensor
saxpy(api.zeros((8, 8), f32), 2.0, x)  # error: an op that yields a tensor
total(part, x, grid=1)  # error: a partition for a SharedMut
total(x[1:], x, grid=1)
saxpy(part, 2.0, x).shape  # error


class Saxpy(NamedTuple):
    y: api.Partition
    a: float
    x: api.Tensor


out: Saxpy = saxpy(part, 2.0, x).sync()
out.z  # error: a name that the launch does not yield
out.y.unpartition().nunpy()  # error
saxpy(part, 2.0, x).generics(3)  # error
y.partition((4.0, 4))  # error
ct.autotune([{"K": 2}])(print)  # error
