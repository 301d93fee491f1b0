"""Variables of the device: kept from launch to launch, one per device, ordered over streams."""

from __future__ import annotations

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device
from cutile import Global, Mut, Ptr, api, f32, i32, i64
from cutile.errors import ArgumentError, ArgumentTypeError, KernelTypeError
from tests.support.devices import on
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS

counter = Global(i32, 0)
total = Global("f64", 1.5)
big = Global(i64, 2**40 + 3)


@ct.entry
def count(y: Mut):
    """What was there before, per tile block."""
    before, _ = counter.atomic_add(1)
    y.store(ct.broadcast(before, y.shape))


def counted(blocks: int) -> list[int]:
    y = api.zeros((blocks,), i32).sync()
    count(y.mut.partition((1,))).sync()
    return sorted(y.to_numpy().sync().tolist())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_counter_persists_between_launches(backend: str) -> None:
    with on(backend):
        counter.reset().sync()
        assert counted(1) == [0]
        assert counted(1) == [1]
        assert counted(500) == list(range(2, 502))
        assert counter.read().sync() == 502
        counter.write(-4).sync()
        assert counted(2) == [-4, -3]


@ct.entry
def both(y: Mut, a: f32):
    """Two variables, loaded and stored; their dtypes are known."""
    i = ct.get_tile_block_id()[0]
    if i == 0:
        old, token = total.load(ct.ordering.ACQUIRE)
        total.store(old + ct.convert_tile(a, total.dtype), ct.ordering.RELEASE)
        ct.join_tokens(token)
        big.atomic_add(ct.convert_tile(i + 2, big.dtype))
        new, _ = big.load()
        y.store(ct.broadcast(new, y.shape))


@pytest.mark.parametrize("backend", BACKENDS)
def test_loads_and_stores_of_wide_elements(backend: str) -> None:
    with on(backend):
        total.reset().sync()
        big.reset().sync()
        out = both(api.zeros((2,), i64).partition((2,)), 0.25).first().unpartition().sync()
        assert out.to_numpy().sync().tolist() == [2**40 + 5] * 2
        assert total.read().sync() == 1.75
        assert big.read().sync() == 2**40 + 5


def test_launches_on_streams_run_one_after_another() -> None:
    with on("cpu"):
        counter.reset().sync()
        device = Device.host()
        streams = [device.new_stream() for _ in range(4)]
        y = [api.zeros((100,), i32).sync().partition((1,)) for _ in range(8)]
        bound = [count(each).bind(streams[i % 4]) for i, each in enumerate(y)]
        for each in bound:
            each()
        for stream in streams:
            stream.synchronize()
        found = np.concatenate([each.unpartition().to_numpy().sync() for each in y])
        assert sorted(found) == list(range(800))
        assert counter.read().sync() == 800


def test_a_graph_counts_at_each_replay() -> None:
    """Also where the variable is first met while the graph is recorded."""
    fresh = Global(i32, 100)
    text = "def k(y: Mut):\n    before, _ = fresh.atomic_add(1)\n    y.store(ct.broadcast(before, y.shape))\n"
    bump = kernel(text, fresh=fresh)
    with on("cpu"):
        stream = Device.host().new_stream()
        y = api.zeros((1,), i32).sync_on(stream)
        graph = bump(y.mut.partition((1,))).graph_on(stream)
        for _ in range(3):
            graph.launch().sync_on(stream)
        assert fresh.read().sync_on(stream) == 103
        assert y.to_numpy().sync_on(stream)[0] == 102


def test_a_kernel_without_arguments_but_a_variable() -> None:
    local = Global(f32, 2)
    double = kernel("def k():\n    old, _ = local.load()\n    local.store(old * 2.0)\n", local=local)
    for _ in range(3):
        double().grid((1,)).sync()
    assert local.read().sync() == 16.0


def test_what_a_variable_cannot_be() -> None:
    with pytest.raises(ArgumentTypeError, match="Global"):
        Global("f33")
    with pytest.raises(ArgumentError, match=r"value: 1.5 is no value of i32"):
        Global(i32, 1.5)
    with pytest.raises(ArgumentError, match="300 is no value of u8"):
        Global("u8").write(300)
    made = kernel("def k():\n    local.atomic_add(1)\n", local=Global("i8"))
    with pytest.raises(KernelTypeError, match="atomic add of i8: there is none"):
        made().grid((1,)).sync()
    with pytest.raises(TypeError, match="only inside a kernel"):
        counter.load()


@ct.entry(unsafe=True)
def after(p: Ptr[i32]):
    """A variable beside raw pointers: its parameter comes last."""
    before, _ = counter.atomic_add(10)
    p.store(before)


@pytest.mark.parametrize(("dtype", "value"), [("bf16", 1 + 2**-8 + 2**-40), ("f8e4m3fn", 0.3), ("f16", 1 + 2**-12)])
def test_values_are_rounded_once(dtype: str, value: float) -> None:
    variable = Global(dtype, value)
    rounded = api.full(value, (), dtype).to_numpy().sync()
    assert variable.read().sync().tobytes() == rounded.tobytes()
    variable.write(0).sync()
    variable.write(value).sync()
    assert variable.read().sync().tobytes() == rounded.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_variable_beside_pointers(backend: str) -> None:
    with on(backend):
        counter.write(7).sync()
        x = api.zeros((1,), i32).sync()
        after(x.device_pointer()).grid((1,)).sync()
        assert (x.to_numpy().sync()[0], counter.read().sync()) == (7, 17)


def test_an_interpreted_kernel_uses_the_same_variables() -> None:
    y = api.zeros((3,), i32).sync()
    before = int(counter.read().sync())
    count(y.mut.partition((1,))).interpret().sync()
    assert int(counter.read().sync()) == before + 3
    count(y.mut.partition((1,))).sync()
    assert int(counter.read().sync()) == before + 6
