"""Mistakes with partitions, views, streams and assumptions: each has its message, a caret and a remedy."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest

from cutile.dtypes import i32
from cutile.errors import KernelError
from cutile.frontend.build import build
from cutile.frontend.source import take_source
from tests.frontend.test_errors import message_of
from tests.support.golden import Golden
from tests.support.kernels import define
from tests.support.programs import mut, scalar, tensor

HEAD = (
    "def kernel(y: Mut, n: i32, x: Tensor, xx: Tensor, ints: Tensor, z: ct.MappedPartitionMut, "
    "w: ct.MappedPartitionMut):\n"
)
TYPES = {
    "y": mut(8), "n": scalar(i32), "x": tensor(1), "xx": tensor(2), "ints": tensor(1, i32),
    "z": replace(mut(4, 4), map=(1, 1)), "w": replace(mut(4, 4), map=(1, 0)),
}  # fmt: skip

BODIES = {
    "partition_rank": "t = x.partition((4, 4))",
    "padding_of_another_kind": "t = x.partition((4,), padding=ct.ordering.WEAK)",
    "padding_of_integers": "t = ints.partition((8,), padding=ct.padding.NAN).load(0)",
    "order_of_axes": "t = x.partition_permuted((4,), (1,))",
    "order_that_repeats_an_axis": "t = xx.partition_permuted((2, 2), (0, 0)).load((0, 0))",
    "store_to_a_tensor": "x.partition((8,)).store(y.load(), 0)",
    "nested_store_of_another_shape": "y.partition_mut((4,)).store(y.load(), 0)",
    "nested_store_of_another_dtype": "y.partition_mut((8,)).store(ct.iota((8,)), 0)",
    "whole_tensor_in_a_safe_kernel": "y.partition_full_mut((4,)).store(1.0, 0)",
    "address_in_a_safe_kernel": "t = ct.load_tensor(x, 0, (4,), (1,), f32)",
    "unchecked_store_in_a_safe_kernel": "y.partition_mut((4,)).store_unchecked(1.0, 0)",
    "latency_below_one": "t = x.partition((4,)).load_pipelined(0, 0)",
    "load_that_releases": "t = ct.load_view_tko(x.partition((4,)), 0, ct.ordering.RELEASE)",
    "store_that_acquires": "ct.store_view_tko(y.partition_mut((4,)), 1.0, 0, ct.ordering.ACQ_REL)",
    "view_that_is_no_partition": "t = ct.load_view_tko(x, 0)",
    "strides_of_another_rank": "t = ct.make_strided_view(x, (4,), (2, 2))",
    "indices_of_another_rank": "t = xx.partition((4, 4)).load(0)",
    "foreign_index": "z.store(1.0, (0, 0))",
    "index_of_another_axis": "for i in z.iter_indices():\n    r, c = i.components()\n    z.store(1.0, (c, r))",
    "stored_without_an_index": "z.store(1.0)",
    "index_of_an_owned_axis": "for i in w.iter_indices():\n    w.store(1.0, i)",
    "part_of_another_rank": "for i in z.iter_indices_within([(0, 1)]):\n    z.store(1.0, i)",
    "part_that_begins_below_zero": "for i in z.iter_indices_within([(-1, 1), (0, -1)]):\n    z.store(1.0, i)",
    "streams_of_other_maps": "for i in z.iter_indices_with(w):\n    z.store(1.0, i)",
    "stream_with_a_tensor": "for i in z.iter_indices_with(x):\n    z.store(1.0, i)",
    "bounds_without_room": "t = ct.assume_bounds(n, 3, 2)",
    "divisor_below_one": "t = ct.assume_div_by(n, 0)",
    "groups_that_do_not_divide": "t = ct.assume_same_elements(y.load(), (3,))",
    "own_tile_of_a_tensor": "t = ct.load_tile_mut(x)",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_mistake_with_memory(name: str, golden: Golden) -> None:
    function = define(HEAD + textwrap.indent(BODIES[name], "    ") + "\n")
    with pytest.raises(KernelError) as caught:
        build(function, take_source(function), TYPES, {})
    for error in caught.value.errors:
        assert "^" in str(error)
        assert error.remedy, f"no remedy: {error}"
    golden(f"errors/memory/{name}", message_of(caught.value))
