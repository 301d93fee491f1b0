"""Bound launches: checked once, repeated cheaply, ordered behind the other users of their arguments."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, OwnershipError, Stream, value
from cuda_async.core.order import holds
from cutile.backend.cpu.load import CpuKernel
from cutile.backend.reference.backend import ReferenceKernel
from cutile.errors import ArgumentError, LaunchError
from cutile.host import api
from tests.support.kernels import kernel
from tests.support.kinds import EVERY, of_kind

AXPY = kernel(
    "def axpy(y: Mut, a: f32, x: Tensor):\n    y.store(a * ct.load_tile_like(x, y) + y.load())\n",
)


CHECKED = kernel("def checked(y: Mut, a: f32):\n    assert a < 100, 'too large'\n    y.store(y.load() + a)\n")


@pytest.fixture(params=EVERY)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with of_kind(request.param, seed=5) as device:
        yield device


def test_a_bound_launch_repeats_and_takes_new_arguments(device: Device) -> None:
    stream = device.new_stream()
    x, y = api.ones((100,)).sync_on(stream), api.zeros((100,)).sync_on(stream)
    bound = AXPY(y.mut.partition((32,)), 1.0, x).bind(stream)
    for _ in range(5):
        bound()
    bound.set(a=10.0)
    bound()
    other = api.full(0.5, (100,)).sync_on(stream)
    bound.set(x=other, a=2.0)
    bound()
    assert set(y.to_numpy().sync_on(stream).tolist()) == {16.0}
    target = api.zeros((100,)).sync_on(stream)
    bound.set(y=target.mut.partition((32,)))
    bound()
    assert set(target.to_numpy().sync_on(stream).tolist()) == {1.0}
    assert set(y.to_numpy().sync_on(stream).tolist()) == {16.0}


def test_arguments_stay_usable_and_are_ordered_across_streams(device: Device) -> None:
    first, second = device.new_stream(), device.new_stream()
    x, y = api.ones((5000,)).sync_on(first), api.zeros((5000,)).sync_on(first)
    bound = AXPY(y.mut.partition((256,)), 1.0, x).bind(first)
    for count in range(1, 30):
        bound()
        assert set(y.to_numpy().sync_on(second).tolist()) == {2.0 * count - 1}
        AXPY(y.mut.partition((256,)), 1.0, x).sync_on(second)


def test_an_argument_in_the_hands_of_another_op_is_refused(device: Device) -> None:
    stream = device.new_stream()
    x, y = api.ones((8,)).sync_on(stream), api.zeros((8,)).sync_on(stream)
    bound = AXPY(y.mut.partition((8,)), 1.0, x).bind(stream)
    op = AXPY(y.mut.partition((8,)), 1.0, x)
    with pytest.raises(OwnershipError, match=r"test_bound\.py:\d+"):
        bound()
    op.discard()
    bound()
    stream.synchronize()


def test_what_a_graph_uses_is_refused_as_an_ordinary_launch_is(device: Device) -> None:
    """Every pair of operands: those of the graph, one beside them in the same memory, and others."""
    stream = device.new_stream()
    whole = api.ones((16,)).sync_on(stream)
    tensors = {name: api.ones((8,)).sync_on(stream) for name in ("graph's input", "other", "another")}
    tensors |= {"graph's output": whole.slice([(0, 8)]), "beside the output": whole.slice([(8, 16)])}

    def launched(y: str, x: str, *, bound: bool) -> str:
        op = AXPY(tensors[y].mut.partition((8,)), 1.0, tensors[x])
        try:
            if bound:
                op.bind(stream)()
            else:
                op.sync_on(stream)
        except OwnershipError as error:
            return str(error)
        return "launched"

    pairs = [(y, x) for y in tensors for x in tensors if y != x]
    output, read = tensors["graph's output"], tensors["graph's input"]
    early = AXPY(output.mut.partition((8,)), 1.0, tensors["other"]).bind(stream)  # before there is a graph
    with AXPY(output.mut.partition((8,)), 1.0, read).graph_on(stream) as graph:
        outcomes = {pair: launched(*pair, bound=True) for pair in pairs}
        assert outcomes == {pair: launched(*pair, bound=False) for pair in pairs}
        assert {y for (y, _), outcome in outcomes.items() if outcome != "launched"} == {
            "graph's output",
            "graph's input",
        }
        with pytest.raises(OwnershipError, match=r"argument 'y' would be written, but the graph captured at"):
            early()
        early.set(y=tensors["another"].mut.partition((8,)))
        early()
        early.set(y=output.mut.partition((8,)))
        graph.launch().sync_on(stream)
    early()
    stream.synchronize()


def test_what_does_not_fit_is_refused_and_changes_nothing(device: Device) -> None:
    stream = device.new_stream()
    x, y = api.ones((64,)).sync_on(stream), api.zeros((64,)).sync_on(stream)
    bound = AXPY(y.mut.partition((32,)), 1.0, x).bind(stream)
    with pytest.raises(ct.ArgumentError, match="no argument 'b'; it has y, a, x"):
        bound.set(b=1.0)
    with pytest.raises(TypeError, match="'a' must be a scalar of f32, got str"):
        bound.set(x=x, a="2")
    with pytest.raises(ct.ArgumentError, match="'x' has another layout"):
        bound.set(a=5.0, x=api.ones((64,), ct.f64).sync_on(stream))
    with pytest.raises(ct.LaunchError, match=r"'y' has the grid \(4, 1, 1\)"):
        bound.set(y=api.zeros((128,)).sync_on(stream).mut.partition((32,)))
    with pytest.raises(ct.ArgumentError, match="'y' and 'x' share memory"):
        bound.set(a=7.0, x=y)
    with pytest.raises(ct.LaunchError, match="ops that have not run"):
        AXPY(api.zeros((64,)).partition((32,)), 1.0, x).bind(stream)
    bound()
    assert set(y.to_numpy().sync_on(stream).tolist()) == {1.0}


def test_binding_uses_up_the_op_but_lends_nothing(device: Device) -> None:
    stream = device.new_stream()
    x, y = api.ones((8,)).sync_on(stream), api.zeros((8,)).sync_on(stream)
    op = AXPY(y.mut.partition((8,)), 1.0, x)
    bound = op.bind(stream)
    with pytest.raises(OwnershipError, match="already bound to a stream"):
        op.bind(stream)
    with pytest.raises(OwnershipError, match="already bound to a stream"):
        op.sync_on(stream)
    AXPY(y.mut.partition((8,)), 1.0, x).sync_on(stream)
    assert np.all(y.to_numpy().sync_on(stream) == 1.0)
    assert repr(bound).startswith("<bound launch of axpy on ")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("device", ["sim", "host"], indirect=True)
def test_a_failure_is_told_to_whoever_waits_next(device: Device, seed: int) -> None:
    """Bound launches that fail or not, with operations and waits between: a model says who is told.

    Bound launches behind a failure are left out until somebody was told of it.
    """
    chance = random.Random(seed)
    stream, side = device.new_stream(), device.new_stream()
    y = api.zeros((4,)).sync_on(side)
    bound = CHECKED(y.mut.partition((4,)), 1.0).bind(stream)
    kinds = ["bound", "bound", "bound fails", "op", "op fails", "wait"]
    expected, untold, failed, followed = 0.0, False, False, True

    def is_told(function: Callable[[], object]) -> bool:
        try:
            function()
        except ct.KernelAssertionError as error:
            assert "too large" in str(error)  # noqa: PT017 - some steps raise nothing
            return True
        return False

    for step in [*(chance.choice(kinds) for _ in range(40)), "wait"]:
        fails = step.endswith("fails")
        if step.startswith("bound"):
            bound.set(a=100.0 if fails else 1.0)
            bound()
            failed, followed = failed and not followed, False
            if not failed:
                failed = fails
                untold = untold or fails
                expected += 0.0 if fails else 1.0
        elif step.startswith("op"):
            z = api.zeros((4,)).sync_on(side)
            op = CHECKED(z.mut.partition((4,)), 100.0 if fails else 1.0)
            assert is_told(lambda op=op: op.sync_on(stream)) == (fails or untold)
            untold, failed, followed = False, fails or untold, True
        else:  # it tells of the run before in any case
            assert is_told(stream.synchronize) == (failed or untold)
            followed = followed or failed or untold
            untold = False
    bound.set(a=1.0)
    bound()
    stream.synchronize()
    np.testing.assert_array_equal(y.to_numpy().sync_on(side), np.full(4, expected + 1.0))


def test_a_partial_partition_may_have_more_tiles_than_the_grid(device: Device) -> None:
    stream = device.new_stream()
    x, y = api.ones((6,)).sync_on(stream), api.zeros((6,)).sync_on(stream)
    bound = AXPY(y.mut.partition_prefix((2,)), 1.0, x).grid(2).bind(stream)
    bound()
    bound.set(y=y.mut.partition_prefix((2,)))
    bound()
    assert y.to_numpy().sync_on(stream).tolist() == [2, 2, 2, 2, 0, 0]
    short = api.zeros((2,)).sync_on(stream)
    with pytest.raises(LaunchError, match=r"has the grid \(1, 1, 1\), the bound launch \(2, 1, 1\)"):
        bound.set(y=short.mut.partition_prefix((2,)))


def test_tiles_with_names_are_refused_by_set(device: Device) -> None:
    stream = device.new_stream()
    x, y = api.ones((6,)).sync_on(stream), api.zeros((6,)).sync_on(stream)
    bound = AXPY(y.mut.partition((2,)), 1.0, x).bind(stream)
    with pytest.raises(ArgumentError, match=r"tiles of B, .*; cut it like the bound partition: \.partition\(\(2,\)\)"):
        bound.set(y=y.mut.partition(("B",)))
    bound()
    assert set(y.to_numpy().sync_on(stream).tolist()) == {1.0}


def test_a_bound_launch_of_no_elements_does_nothing(device: Device) -> None:
    stream = device.new_stream()
    x, y = api.ones((0,)).sync_on(stream), api.zeros((0,)).sync_on(stream)
    bound = AXPY(y.mut.partition((2,)), 1.0, x).bind(stream)
    bound()
    bound.set(a=2.0, y=y.mut.partition((2,)))
    bound()
    stream.synchronize()
    assert not in_use(y)


def test_a_refused_call_leaves_no_use_behind(device: Device) -> None:
    """The memory ahead of the refused argument is not in use by work that was never enqueued."""
    stream = device.new_stream()
    y, x, z = (api.ones((8,)).sync_on(stream) for _ in range(3))
    text = "def two(y: Mut, x: Tensor, z: Mut):\n    y.store(ct.load_tile_like(x, y))\n    z.store(y.load())\n"
    bound = kernel(text)(y.mut.partition((8,)), x, z.mut.partition((8,))).bind(stream)
    bound()
    op = AXPY(z.mut.partition((8,)), 1.0, x)
    for _ in range(3):
        with pytest.raises(OwnershipError, match="'z'"):
            bound()
    stream.synchronize()
    assert not any(in_use(tensor) for tensor in (y, x, z))
    op.discard()
    bound()
    stream.synchronize()


def in_use(tensor: ct.Tensor) -> bool:
    return tensor.storage._allocation.in_use()  # pyright: ignore[reportPrivateUsage]


# -- work that binding enqueues --------------------------------------------------------------------


def test_preparing_a_launch_is_a_submission(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU code may get a workspace, which is filled on the stream: no other thread may submit in between."""
    stream, held = device.new_stream(), list[bool]()

    def noting(loaded: type[Any]) -> Callable[..., Any]:
        prepare = loaded.prepare

        def noted(self: Any, grid: Any, arguments: Any, on: Any) -> Any:
            held.append(holds(stream))
            prepared = prepare(self, grid, arguments, on)
            change = prepared.set

            def noted_change(*arguments: Any) -> None:
                held.append(holds(stream))
                change(*arguments)

            prepared.set = noted_change
            return prepared

        return noted

    for loaded in (CpuKernel, ReferenceKernel):
        monkeypatch.setattr(loaded, "prepare", noting(loaded))
    x, y = api.ones((8,)).sync_on(stream), api.zeros((8,)).sync_on(stream)
    bound = AXPY(y.mut.partition((8,)), 1.0, x).bind(stream)
    bound.set(a=2.0, x=api.ones((8,)).sync_on(stream))
    assert len(held) >= 3
    assert all(held)
    assert not holds(stream)


def counting() -> Any:
    """A kernel with a variable that no device has yet."""
    text = "def count(y: Mut):\n    before, _ = start.atomic_add(1)\n    y.store(ct.broadcast(before, y.shape))\n"
    return kernel(text, start=ct.Global(ct.i32, 1234))


MakeOp = Callable[[], Any]


def bound_alone(stream: Stream, failing: MakeOp, op: MakeOp) -> None:
    del failing
    op().bind(stream)()


def bound_behind_a_failure(stream: Stream, failing: MakeOp, op: MakeOp) -> None:
    failing().bind(stream)()
    bound = op().bind(stream)
    with pytest.raises(ct.KernelAssertionError):
        stream.synchronize()
    bound()


def bound_in_the_run_of_a_failure(stream: Stream, failing: MakeOp, op: MakeOp) -> None:
    bound: list[Any] = []

    def bind(_: Any) -> Any:
        return value(bound.append(op().bind(stream)))

    with pytest.raises(ct.KernelAssertionError):
        failing().then(bind).sync_on(stream)
    bound[0]()


def launched_in_the_run_of_a_failure(stream: Stream, failing: MakeOp, op: MakeOp) -> None:
    def follow(_: Any) -> Any:
        return op()

    with pytest.raises(ct.KernelAssertionError):
        failing().then(follow).sync_on(stream)
    op().sync_on(stream)


def captured_behind_a_failure(stream: Stream, failing: MakeOp, op: MakeOp) -> None:
    failing().bind(stream)()
    with op().graph_on(stream) as graph:
        with pytest.raises(ct.KernelAssertionError):
            stream.synchronize()
        graph.launch().sync_on(stream)


@pytest.mark.parametrize(
    "way",
    [
        bound_alone,
        bound_behind_a_failure,
        bound_in_the_run_of_a_failure,
        launched_in_the_run_of_a_failure,
        captured_behind_a_failure,
    ],
)
@pytest.mark.parametrize("device", ["sim", "host"], indirect=True)
def test_a_variable_has_its_initial_value_whatever_failed_before(device: Device, way: Callable[..., None]) -> None:
    stream = device.new_stream()
    z, count, results = api.zeros((4,)).sync_on(stream), counting(), list[ct.Tensor]()
    ready = [api.zeros((1,), ct.i32).sync_on(stream) for _ in range(2)]

    def counted() -> Any:
        results.append(ready.pop())
        return count(results[-1].mut.partition((1,)))

    way(stream, lambda: CHECKED(z.mut.partition((4,)), 100.0), counted)
    assert results[-1].to_numpy().sync_on(stream).tolist() == [1234]


# -- lifetimes -------------------------------------------------------------------------------------


def code_of(launched: Any) -> weakref.ref[Any]:
    """The loaded code of a bound launch or of a kernel's launches so far."""
    return weakref.ref(launched._compiled.loaded)


@pytest.mark.parametrize("in_cycle", [False, True])
def test_code_stays_loaded_until_its_launches_have_finished(device: Device, in_cycle: bool) -> None:
    stream = device.new_stream()

    def launched() -> weakref.ref[Any]:
        y = api.zeros((4,)).sync_on(stream)
        bound = kernel("def two(y: Mut):\n    y.store(y.load() + 2)\n")(y.mut.partition((4,))).bind(stream)
        bound()
        if in_cycle:
            bound.itself = bound  # pyright: ignore[reportAttributeAccessIssue]
        return code_of(bound)

    code = launched()
    gc.collect()
    assert code() is not None
    stream.synchronize()
    gc.collect()
    assert code() is None
