"""The launch of a plain GPU kernel: a function made for it, which does what the general way does. No GPU needed."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, NamedTuple, cast

import pytest

import cutile as ct
from cuda_async import ContextError, Device, Stream
from cuda_async.testing import SimDriver
from cuda_async.unsafe import async_on
from cutile import Mut, Tensor, api, f32
from cutile.backend.interface import Packed
from cutile.errors import LaunchError
from cutile.launch.compiled_kernel import CompiledKernel
from cutile.launch.fastpath import numbers_of
from cutile.launch.kernel_op import KernelOp
from cutile.launch.target import target_of


@ct.entry
def saxpy(y: Mut, a: f32, x: Tensor):
    """y = a * x + y."""
    y.store(a * ct.load_tile_like(x, y) + y.load())


@ct.entry
def hello():
    """No arguments."""
    ct.cuda_tile_print("hello\n")


class Gpu:
    """Stands for loaded code whose launches are numbers in memory and one call."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.memories: list[list[Any]] = []
        self.launches: list[tuple[Any, int, list[Any]]] = []

    variants = None

    def packed(self, stream: Stream) -> Packed:
        return Packed(self.pack, self.launch_packed, self.most, self.make_memory, self)

    def make_memory(self) -> tuple[Any, int]:
        self.memories.append([])
        return self.memories[-1], len(self.memories) - 1

    def pack(self, memory: list[Any], offset: int, *numbers: Any) -> None:
        memory[offset:] = numbers

    def launch_packed(self, stream: Any, blocks: int, where: int) -> None:
        self.launches.append((stream, blocks, self.memories[where].copy()))

    def launch(self, grid: Any, numbers: Any, stream: Any) -> None:
        raise LaunchError(f"in general: {grid}")


class Made(NamedTuple):
    op: KernelOp
    kernel: CompiledKernel
    gpu: Gpu
    compiled: Any

    def launch(self, stream: Stream) -> None:
        """As the op would."""
        op: Any = self.op
        self.kernel.enqueue(op._checked, op._uses, op._grid, stream)


def make(device: Device, *, most: int = 2**31 - 1) -> tuple[Made, api.Tensor, api.Tensor, Stream]:
    """A saxpy of 32 elements, its arguments, and a stream."""
    stream = device.new_stream()
    x, y = api.ones((32,), f32).sync_on(stream), api.zeros((32,), f32).sync_on(stream)
    return make_of(saxpy, saxpy(y.mut.partition((8,)), 3.0, x), stream, most), y, x, stream


def make_of(kernel: Any, op: Any, stream: Stream, most: int = 2**31 - 1, *, gpu: Gpu | None = None) -> Made:
    """What launches `op`, for code that is not there."""
    gpu = gpu or Gpu(most)
    compiled = dataclasses.replace(op._plan.compiled(target_of(stream.device, None)), loaded=gpu, memo={})

    class Plan:
        def compiled(self, _: object) -> Any:
            return compiled

    plan: Any = Plan()
    op.discard()
    return Made(op, CompiledKernel(plan, kernel.cache, stream, None), gpu, compiled)


@pytest.fixture
def device() -> Device:
    return Device.from_driver(SimDriver(seed=1))


def test_the_numbers_are_those_of_the_general_way(device: Device) -> None:
    pending, *_, stream = make(device)
    sequence = stream.sequence
    pending.launch(stream)
    op: Any = pending.op
    expected = numbers_of(pending.compiled)(op._checked, op._grid)
    assert pending.gpu.launches == [(stream.driver, 4, expected)]
    assert expected[0] == op._checked[0].address
    assert 3.0 in expected
    assert stream.sequence == sequence + 1
    assert pending.gpu in stream.held.values()


def test_a_repeated_launch_has_the_same_numbers_but_its_own_addresses(device: Device) -> None:
    pending, *_, stream = make(device)
    pending.launch(stream)
    op: Any = pending.op
    again = pending.kernel.repeated(op._checked, op._grid)
    assert again is not None
    y, _, x = op._checked
    again(stream, y.address, 3.0, x.address)
    again(stream, 64, 4.0, 128)
    first, second, third = (numbers for _, _, numbers in pending.gpu.launches)
    assert second == first
    assert third == [{y.address: 64, x.address: 128, 3.0: 4.0}.get(each, each) for each in first]
    assert [blocks for _, blocks, _ in pending.gpu.launches] == [4] * 3
    assert stream.sequence >= 3


def test_what_is_more_than_numbers_is_not_repeated(device: Device) -> None:
    pending, *_ = make(device, most=3)  # fewer than its four tile blocks
    op: Any = pending.op
    assert pending.kernel.repeated(op._checked, op._grid) is None

    pending, *_ = make(device)
    op, kernel = pending.op, cast("Any", pending.kernel)
    kernel._condition = print  # which may be about the scalar
    assert pending.kernel.repeated(op._checked, op._grid) is None


def test_it_is_ordered_behind_other_streams(device: Device) -> None:
    pending, y, x, stream = make(device)
    other = device.new_stream()
    async_on(api.fill(x, 2.0), other)
    pending.launch(stream)
    pending.launch(stream)
    assert stream.statistics().waits == 1  # for the fill; the second launch follows the first anyway
    async_on(api.fill(y, 1.0), other)  # writes what the launches wrote
    assert other.statistics().waits == 1
    async_on(api.fill(x, 1.0), other)  # and what they read: covered by the wait before
    assert other.statistics().waits == 1


def test_threads_have_memory_of_their_own(device: Device) -> None:
    pending, *_, stream = make(device)
    pending.launch(stream)
    pending.launch(stream)
    thread = threading.Thread(target=pending.launch, args=(stream,))
    thread.start()
    thread.join()
    assert len(pending.gpu.memories) == 2


def test_an_argument_on_another_device_is_named(device: Device) -> None:
    pending, *_, stream = make(device)
    elsewhere, *_ = make(Device.from_driver(SimDriver(seed=2, ordinal=1)))
    with pytest.raises(ContextError, match=r"saxpy: argument 'y' is on sim:1, the launch on sim:0"):
        pending._replace(op=elsewhere.op).launch(stream)
    assert not pending.gpu.launches


def test_too_many_blocks_go_the_general_way_which_refuses_them(device: Device) -> None:
    made, *_, stream = make(device, most=3)
    with pytest.raises(LaunchError, match=r"in general: \(4, 1, 1\)"):
        made.launch(stream)


def test_a_kernel_may_have_no_arguments(device: Device) -> None:
    stream = device.new_stream()
    made = make_of(hello, hello().grid((2, 3, 1)), stream)
    made.launch(stream)
    ((_, blocks, numbers),) = made.gpu.launches
    assert (blocks, numbers) == (6, [2, 3, 1])
