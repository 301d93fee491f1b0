"""What a tensor can do, an operation that yields one can do too, whatever made the operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_async import Device, DeviceOp, OwnershipError, UnrunOperationWarning, value, zip
from cutile import api, f16, f32, i32
from cutile.errors import ArgumentError
from tests.host.work import Overwrite

pytestmark = pytest.mark.usefixtures("device")


def test_a_chain_in_one_line() -> None:
    source = api.arange(6, f16).sync()
    op: DeviceOp[Any] = Overwrite(api.zeros((2, 3), f16).partition((1, 3)).sync(), source)
    assert op.first().unpartition().reshape(-1).to_host_vec().sync().tolist() == list(range(6))


def test_metadata_methods_are_forwarded() -> None:
    x = api.arange(24, i32).reshape((4, 6))
    assert x.view((2, 12)).sync().shape == (2, 12)
    expected = np.arange(24).reshape(4, 6)
    np.testing.assert_array_equal(
        api.arange(24, i32).reshape((4, 6)).slice((1, 3), (0, 2)).to_numpy().sync(), expected[1:3, :2]
    )
    np.testing.assert_array_equal(api.arange(24, i32).reshape((4, 6)).transpose().to_numpy().sync(), expected.T)
    assert x.shared is not None
    assert api.zeros((5, 5)).partition((2, 3)).sync().shape == (2, 3)


def test_shared_handles_are_forwarded() -> None:
    tensor = api.ones((4,)).sync()
    assert value(tensor.shared()).try_partition((2,)).unpartition().sync() is tensor
    assert value(tensor.shared()).unwrap_arc().dup().sync().shape == (4,)


def test_results_of_every_combinator_forward() -> None:
    ops: list[DeviceOp[Any]] = [
        zip(api.ones((2, 2)), 3).first(),
        value(1).then(lambda _: api.ones((2, 2))),
        api.ones((4,)).map(lambda t: t.reshape((2, 2))),
        api.ones((2, 2)).shared(),
        zip(api.ones((2, 2)), 3).unzip()[0],
    ]
    for op in ops:
        assert op.to_numpy().sync().tolist() == [[1, 1], [1, 1]]


def test_shapes_are_checked_when_the_op_runs_and_the_line_is_named() -> None:
    with pytest.raises(ArgumentError, match="does not fit") as caught:
        api.ones((4,)).reshape((5,)).sync()
    assert any("test_forwarding.py" in note for note in caught.value.__notes__)


def test_a_result_without_the_method_says_so() -> None:
    untyped: Any = value(3)
    with pytest.raises(AttributeError, match="'int' object has no attribute 'reshape'"):
        untyped.reshape((1,)).sync()


def test_a_tuple_has_no_such_methods_and_the_error_names_first() -> None:
    for call in ("reshape", "to_numpy"):
        pair: Any = zip(value(1), value(2))
        with pytest.raises(TypeError, match=rf"{call}: <zip.* yields a tuple of 2; .*\.first\(\)\.{call}"):
            getattr(pair, call)(*([(2,)] if call == "reshape" else []))
        pair.discard()


def test_an_op_is_used_once() -> None:
    op = api.ones((4,))
    op.to_numpy().sync()
    with pytest.raises(OwnershipError, match=r"already .* at .*test_forwarding\.py"):
        op.to_numpy()


def test_new_tensors_may_be_dropped_unrun_but_writes_warn(device: Device) -> None:
    api.ones((4,)).reshape((2, 2))  # no warning: nothing that anybody misses
    tensor = api.ones((4,)).sync()
    with pytest.warns(UnrunOperationWarning, match="fill.* was never run"):
        api.fill(tensor, f32.bits)
    with pytest.warns(UnrunOperationWarning, match="memcpy made here was never run"):
        api.memcpy(tensor, tensor.dup().sync())
    assert tensor.to_host_vec().sync().tolist() == [1] * 4
