"""Launches with new outputs, and what follows them: without a run they do what a run does, in fewer steps."""

from __future__ import annotations

import asyncio
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutile as ct
from cuda_async import Device, DeviceOp, DriverError, Instrument, OwnershipError, Stream, instrumented, value
from cuda_async.combinators import Forwarded, Select
from cuda_async.core.operation import Operation, whole
from cuda_async.core.run import Run
from cuda_async.testing import SimDriver
from cuda_async.unsafe import async_on
from cutile import Mut, Tensor, api, f32
from cutile.launch.kernel_op import KernelOp
from tests.launch.test_compiled_kernel import make_of
from tests.launch.test_fastpath import General, bytecodes


@ct.entry
def scaled(y: Mut, a: f32, x: Tensor, *, TIMES: ct.Const = 1):
    """y = a * x * TIMES."""
    y.store(a * ct.load_tile_like(x, y) * TIMES)


@ct.entry
def both(y: Mut, z: Mut, x: Tensor):
    """y = x, z = 2 * x."""
    tile = ct.load_tile_like(x, y)
    y.store(tile)
    z.store(tile + tile)


class Alone(SimDriver):
    """A device that works by itself, so that `await` may spin, as a GPU does."""

    works_alone = True


class On:
    """A policy of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def next_stream(self) -> Stream:
        return self.stream


OUTPUTS = (
    "new",
    "new",
    "new",
    "filled",
    "tensor",
    "borrowed",
    "shared",
    "in two steps",
    "prefix",
    "too large",
    "no shape",
    "empty",
)
STEPS = ("first", "last", "unpartition", "reshape", "map", "inspect", "then", "second launch")
CHAINS = (("first", "unpartition"), ("first",), ("last",), ("first", "unpartition", "reshape"), ())
WAYS = ("sync_on", "sync_on", "async_on", "await", "future", "used twice", "dropped", "scheduled", "instrumented")
FAULTS = (None, None, None, None, "allocate", "launch", "run:launch")
MISTAKES = (None, None, None, None, "dtype", "lent", "extents", "elsewhere")
OPTIONS = (None, None, "generics", "by name", "options", "grid")


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    """A launch, the steps that follow it, the way it is run, and what goes wrong."""
    steps = draw(st.sampled_from(CHAINS)) if draw(st.integers(0, 3)) else tuple(draw(st.lists(st.sampled_from(STEPS))))
    return {
        "kernel": draw(st.sampled_from(["scaled", "scaled", "both"])),
        "outputs": (draw(st.sampled_from(OUTPUTS)), draw(st.sampled_from(OUTPUTS))),
        "steps": steps,
        "way": draw(st.sampled_from(WAYS)),
        "fault": draw(st.sampled_from(FAULTS)),
        "mistake": draw(st.sampled_from(MISTAKES)),
        "options": draw(st.sampled_from(OPTIONS)),
        "rows": draw(st.sampled_from([4, 6])),
        "input": draw(st.sampled_from(["tensor", "op"])),
        "tile": draw(st.sampled_from([(2, 4), [2, 4], (2.0, 4), (4, 8)])),
    }


def output(kind: str, shape: tuple[int, int], tile: Any, stream: Stream) -> Any:
    """An argument that a launch writes."""
    if kind in ("tensor", "borrowed"):
        tensor = api.zeros(shape, f32).sync_on(stream)
        return tensor.partition(tile) if kind == "tensor" else tensor.mut.partition(tile)
    if kind == "empty":
        shape = (0, shape[1])
    new = api.full(3.0, shape, f32) if kind == "filled" else api.empty(shape, f32)
    if kind == "shared":
        new = new.shared()
    if kind == "in two steps":
        return new.reshape((-1,)).reshape(shape).partition(tile)
    if kind == "prefix":
        return new.map(lambda tensor: tensor.partition_prefix(tile))
    tiles: dict[str, Any] = {"too large": (1 << 12, 1 << 10), "no shape": "?"}
    return new.partition(tiles.get(kind, tile))


def launch(program: dict[str, Any], stream: Stream, other: Device) -> DeviceOp[Any]:
    """The launch, with its mistake."""
    mistake, shape = program["mistake"], (program["rows"], 8)
    on = other.new_stream() if mistake == "elsewhere" else stream
    x: Any = api.ones((4, 4) if mistake == "extents" else shape, ct.i32 if mistake == "dtype" else f32)
    if program["input"] == "tensor" or mistake in ("lent", "elsewhere"):
        x = x.sync_on(on)
    if mistake == "lent":
        program["lent"] = api.fill(x, 2.0)
    first, second = (output(kind, shape, program["tile"], stream) for kind in program["outputs"])
    if program["kernel"] == "both":
        op = both(first, second, x)
    else:
        if isinstance(second, DeviceOp):
            second.discard()
        named = {"TIMES": 3} if program["options"] == "by name" else {}
        op = scaled(first, 2.0, x, **named)
        if program["options"] == "generics":
            op = op.generics([2])
    if program["options"] == "options":
        op = op.compile_options(ct.CompileOptions(num_worker_warps=4))
    return op.grid((2, 2, 1)) if program["options"] == "grid" else op


def itself(result: Any) -> Any:
    return result


def followed(op: DeviceOp[Any], steps: tuple[str, ...], stream: Stream) -> DeviceOp[Any]:
    """The operation with steps behind it."""
    by_name: dict[str, Callable[[Any], Any]] = {
        "first": lambda op: op.first(),
        "last": lambda op: op.last(),
        "unpartition": lambda op: op.unpartition(),
        "reshape": lambda op: op.reshape((-1, 2)),
        "map": lambda op: op.map(itself),
        "inspect": lambda op: op.inspect(itself),
        "then": lambda op: op.then(value),
        "second launch": lambda op: op.then(new_output),
    }
    for step in steps:
        op = by_name[step](op)
    return op


def run(way: str, op: DeviceOp[Any], stream: Stream, sim: SimDriver) -> Any:
    """Run an operation in one of the ways, and return its result, if it has one."""
    if way == "async_on":
        return async_on(op, stream)
    if way == "await":
        return asyncio.run(awaited(op, stream))
    if way == "future":
        future = op.schedule(On(stream))
        future.start()
        return future.sync()
    if way == "scheduled":
        return op.schedule(On(stream)).close()
    if way == "used twice":
        async_on(op, stream)
        return async_on(op, stream)
    if way == "dropped":
        return op.discard()
    if way == "instrumented":
        with instrumented(Instrument()):
            return op.sync_on(stream)
    return op.sync_on(stream)


async def awaited(op: DeviceOp[Any], stream: Stream) -> Any:
    return await op.schedule(On(stream))


def words(error: BaseException) -> tuple[object, ...]:
    """The class and the text of an error, its notes among it, without places and numbers of streams."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return type(error), re.sub(r"\S+\.py:\d+|Cell In.*|stream \d+|Stream \d+|0x[0-9a-f]+", "...", text)


def shown(result: Any, stream: Stream) -> object:
    """A result: its classes, shapes and values."""
    if isinstance(result, tuple):
        items = cast("tuple[Any, ...]", result)
        return type(items).__name__, [shown(each, stream) for each in items]
    if isinstance(result, api.Tensor):
        with suppress(OwnershipError):
            return "tensor", result.shape, result.strides, result.to_numpy().sync_on(stream).tolist()
        return "held tensor", result.shape
    if isinstance(result, api.Partition | api.BorrowedPartition):
        return type(result), result.shape, result.grid(), result.numpy().tolist()
    return repr(result)


def outcome(program: dict[str, Any], *, fast: bool) -> list[object]:
    """The outcome of a program: the result or the error, and the states that it leaves."""
    program = dict(program)
    sim = Alone(seed=3)
    device, other = Device.from_driver(sim), Device.from_driver(SimDriver(seed=4, ordinal=1))
    stream = device.new_stream()
    outcomes: list[object] = []
    operation: Any = None
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught, device:
        warnings.simplefilter("always")
        if not fast:
            general_ways(patch)
        try:
            operation = followed(launch(program, stream, other), program["steps"], stream)
            if program["fault"] is not None:
                sim.fail(program["fault"])
                if program["fault"] == "allocate":
                    sim.fail("allocate", at=2)  # else the memory is found after a collection
            result = run(program["way"], operation, stream, sim)
            sim.run_until_idle()
            outcomes.append(shown(result, stream))
            del result
        except Exception as error:
            outcomes.append(words(error))
        sim.run_until_idle()
        with suppress(DriverError):  # of an operation that nobody followed
            stream.synchronize()
        outcomes += [(type(warning.message), words(warning.message)[1]) for warning in caught]  # type: ignore[arg-type]
    if operation is not None:
        outcomes += [(type(part).__name__, part.label(), part.state) for part in whole(operation)]
        storages = {id(use[1]): use[1] for part in whole(operation) for lease in part.leases for use in lease.uses}
        outcomes += sorted(len(storage.leases) for storage in storages.values())
        operation.discard()
    if "lent" in program:
        program["lent"].discard()
    is_free = stream.submission.acquire(blocking=False)
    stream.submission.release()
    outcomes += [stream.sequence == stream.completed, len(stream.held), is_free]
    return outcomes


def general_ways(patch: pytest.MonkeyPatch) -> None:
    """Have every launch checked in general, and run by a run."""

    def none(op: Operation[Any], *_: object, waited: bool) -> None:
        """In place of `fast_path`."""

    for kernel in (scaled, both):
        patch.setattr(kernel.launchable, "recognizers", General(kernel.cache))
        patch.setattr(kernel.launchable, "named", {})
    for kind in (KernelOp, Select, Forwarded):
        patch.setattr(kind, "fast_path", none)
        patch.setattr(kind, "fast_steps", none)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(programs())
def test_without_a_run_it_does_what_a_run_does(program: dict[str, Any]) -> None:
    general = outcome(program, fast=False)
    assert outcome(program, fast=True) == general
    assert outcome(program, fast=True) == general  # once more: what the first call has learnt changes nothing


@pytest.fixture
def stream() -> Stream:
    return Device.from_driver(Alone(seed=3)).new_stream()


def new_output(x: Any) -> DeviceOp[Any]:
    return scaled(api.empty(x.shape, f32).partition((2, 4)), 2.0, x).first().unpartition()


@pytest.mark.parametrize("way", ["sync_on", "async_on", "await"])
def test_the_usual_launches_need_no_run(way: str, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the programs above; else they would show nothing."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a run was made")

    def spin(is_done: Callable[[], bool]) -> bool:
        sim.run_until_idle()  # within the time of a spin
        return is_done()

    sim: Any = stream.device.driver
    x = api.ones((4, 8), f32).sync_on(stream)
    y = api.zeros((4, 8), f32).sync_on(stream)
    new_output(x).sync_on(stream)  # by a run, which makes the plan
    monkeypatch.setattr("cuda_async.DeviceFuture._spin", staticmethod(spin))
    for make in (
        lambda: new_output(x),
        lambda: new_output(x).reshape((-1,)),
        lambda: scaled(y.partition((2, 4)), 2.0, x).first().unpartition(),
        lambda: scaled(y.mut.partition((2, 4)), 2.0, x).first(),
        lambda: scaled(api.empty((4, 8), f32).partition((2, 4)), 2.0, x),
        lambda: api.empty((4, 8), f32),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Run, "__init__", refuse)
            run(way, make(), stream, sim)
    result = run(way, new_output(x), stream, sim)
    np.testing.assert_array_equal(result.to_numpy().sync_on(stream), np.full((4, 8), 2.0))


def test_memory_that_a_failed_launch_was_to_write_raises_its_failure(stream: Stream) -> None:
    sim: Any = stream.device.driver
    x = api.ones((4, 8), f32).sync_on(stream)
    new_output(x).sync_on(stream)
    op: Any = new_output(x)
    sim.fail("run:launch")
    with pytest.raises(DriverError, match="injected fault"):
        op.sync_on(stream)
    (storage,) = op.written()
    assert isinstance(storage.error, DriverError)
    assert not x.storage.leases
    x.to_numpy().sync_on(stream)  # it was only read


def test_a_new_output_is_freed_with_its_tensor(stream: Stream) -> None:
    x = api.ones((4, 8), f32).sync_on(stream)
    new_output(x).sync_on(stream)
    stream.synchronize()
    stream.device.collect()
    stream.synchronize()
    pool = stream.device.default_mem_pool()
    before = pool.statistics().used_current
    result = new_output(x).sync_on(stream)
    assert pool.statistics().used_current > before
    del result
    stream.device.collect()
    stream.synchronize()
    assert pool.statistics().used_current == before


def test_outlines_of_equal_tensors_are_one_object() -> None:
    one, two = (api.empty((4, 8), f32).partition((2, 4)) for _ in range(2))
    assert one.outline() is two.outline() is not None
    for op in (api.empty((0, 8), f32).partition((2, 4)), api.full(0.1, (4, 8), ct.f64).partition((2, 4)),
               api.empty((4, 8), f32).partition(cast("Any", (2.0, 4))), api.empty((4, 8), f32).partition(("M", 4)),
               api.empty((4, 8), f32).reshape((8, 4)).partition((2, 4))):  # fmt: skip
        assert op.outline() is None


@ct.entry
def added(y: Mut, x: Tensor):
    y.store(y.load() + ct.load_tile_like(x, y))


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_a_new_output_is_filled_ahead_of_the_launch(value: float) -> None:
    """A fill that one memset does needs no run."""
    stream = Device("cpu").new_stream()
    x = api.ones((4, 8), f32).sync_on(stream)
    for turn in range(3):
        op = added(api.full(value, (4, 8), f32).partition((2, 4)), x).first().unpartition()
        assert turn == 0 or op.fast_path(waited=True) is not None  # the general way makes the plan first
        np.testing.assert_array_equal(op.sync_on(stream).numpy(), np.full((4, 8), value + 1))


@ct.entry(unsafe=True)
def offset(y: Mut, p: ct.Ptr[f32]):
    """y = p[0] + y."""
    y.store(y.load() + p.load())


@pytest.mark.parametrize("new", [api.empty, api.zeros])
def test_a_new_output_beside_a_pointer(new: Callable[..., Any]) -> None:
    """The fast path knows arguments by their layouts, which pointers lack."""
    stream = Device("cpu").new_stream()
    x = api.full(2.5, (3,), f32).sync_on(stream)
    for _ in range(3):
        result = offset(new((4, 8), f32).partition((2, 4)), x.device_pointer()).first().unpartition().sync_on(stream)
        assert new is api.empty or (result.numpy() == 2.5).all()


@ct.entry
def counted(y: Mut, total: ct.SharedMut, x: Tensor):
    """y = x + 1, and how many elements there are."""
    y.store(ct.load_tile_like(x, y) + 1)
    ct.atomic_add(total, (0,), ct.reduce_sum(ct.reduce_sum(y.inside().astype(f32), 1), 0))


def test_new_tensors_of_other_parameters_need_no_run() -> None:
    """Of a shared parameter, and of one that is read."""
    stream = Device("cpu").new_stream()
    for turn in range(3):
        op = counted(api.empty((4, 8), f32).partition((2, 4)), api.full(2.0, (1,), f32), api.ones((4, 8), f32))
        assert turn == 0 or op.fast_path(waited=True) is not None
        out = op.sync_on(stream)
        assert (out.y.unpartition().numpy() == 2).all()
        assert out.total.numpy().tolist() == [34.0]
        assert (out.x.numpy() == 1).all()


def test_running_sums_need_no_run() -> None:
    with Device("cpu"):
        x = api.arange(1000, f32).sync()
        for turn in range(3):
            op = api.cumsum(x)
            assert turn == 0 or op.fast_path(waited=True) is not None
            np.testing.assert_array_equal(op.sync().numpy(), np.cumsum(np.arange(1000.0)))


BYTECODES = {"new, not waited for": 2479, "new, waited for": 3726, "tensor, waited for": 2504}
"""Instructions of CPython 3.13 of a launch that `.first().unpartition()` follows; raise none of them unasked.

The launch alone takes the instructions of `test_fastpath.BYTECODES`. Of those of a new output, 466 are the simulated
driver's, which allocates and frees.
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 13), reason="other versions of Python have other instructions")
def test_a_launch_with_a_new_output_costs_no_more_bytecodes(stream: Stream) -> None:
    x, y = api.ones((4, 8), f32).sync_on(stream), api.zeros((4, 8), f32).sync_on(stream)
    pending = make_of(scaled, scaled(y.mut.partition((2, 4)), 2.0, x), stream)
    cast("Any", pending.op)._plan.memo[stream.device] = pending.kernel
    costs = {
        "new, not waited for": lambda: async_on(new_output(x), stream),
        "new, waited for": lambda: new_output(x).sync_on(stream),
        "tensor, waited for": lambda: scaled(y.partition((2, 4)), 2.0, x).first().unpartition().sync_on(stream),
    }
    for launch in costs.values():
        for _ in range(3):
            launch()
    assert {name: min(bytecodes(launch) for _ in range(5)) for name, launch in costs.items()} == BYTECODES
