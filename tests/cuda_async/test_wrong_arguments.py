"""Public functions refuse an argument of a wrong type: they say what was expected, what came, what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from cuda_async import (
    CudaGraph,
    Device,
    DeviceError,
    LaunchConfig,
    SingleStream,
    Storage,
    StreamPoolRoundRobin,
    set_global_policy,
    value,
    zip,
)

DOORS: dict[str, Callable[[Any], object]] = {
    "sync_on": lambda wrong: value(1).sync_on(wrong),
    "graph_on": lambda wrong: value(1).graph_on(wrong),
    "scope": CudaGraph.scope,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("wrong", [None, 0, "cpu", Device.host()])
def test_streams(door: str, wrong: object) -> None:
    with pytest.raises(TypeError, match=r"expected a stream, such as Device\.best\(\)\.new_stream\(\), got"):
        DOORS[door](wrong)


def test_a_stream_is_no_policy(device: Device) -> None:
    stream: Any = device.new_stream()
    with pytest.raises(TypeError, match=r"expected a policy, .* got Stream: .*; .* write \.sync_on\(stream\)"):
        value(1).schedule(stream)
    with pytest.raises(TypeError, match=r"expected a policy, which is anything with a method next_stream\(\), got int"):
        set_global_policy(device, 4)  # type: ignore[arg-type]
    assert device.policy is None or device.policy != 4


@pytest.mark.parametrize("method", ["then", "map", "inspect"])
def test_functions_are_asked_for_at_once(method: str) -> None:
    op = value(1)
    with pytest.raises(TypeError, match=f"{method}: expected a function of the result, got NoneType"):
        getattr(op, method)(None)
    assert op.sync() == 1


def test_policies_take_names_of_devices() -> None:
    assert SingleStream("cpu").device is StreamPoolRoundRobin("cpu", 1).device is Device.host()


def test_a_list_of_operations_is_not_zipped() -> None:
    pair: Any = [value(1), value(2)]
    with pytest.raises(TypeError, match=r"a list of them, .* write zip\(\*ops\)"):
        zip(pair, 3)
    assert zip(*pair).sync() == (1, 2)
    assert zip([1, 2], 3).sync() == ([1, 2], 3)


class NoRepr:
    """An object whose `repr` fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def nested() -> object:
    items: list[Any] = []
    for _ in range(100_000):
        items = [items]
    return items


SHOWN: dict[str, Callable[[Any], object]] = {
    "a device": Device,
    "a device's name": Device.parse,
    "a stream": lambda wrong: value(1).sync_on(wrong),
    "a policy": lambda wrong: value(1).schedule(wrong),
    "bytes": lambda wrong: Storage.allocate(Device.host().new_stream(), wrong),
    "borrowed bytes": lambda wrong: Storage.borrow(Device.host().new_stream(), 64, wrong),
    "bytes of a pool": lambda wrong: Device.host().default_mem_pool().trim(wrong),
    "a margin": lambda wrong: Device.host().new_stream(sm_margin=wrong),
    "extents": lambda wrong: LaunchConfig(wrong, 1),
    "shared memory": lambda wrong: LaunchConfig(1, 1, wrong),
}


@pytest.mark.parametrize("door", SHOWN)
@pytest.mark.parametrize(
    "wrong", [-(10**5000), [-(10**5000)], nested(), NoRepr()], ids=["int", "list", "nested", "object"]
)
def test_any_object_is_shown(door: str, wrong: object) -> None:
    """Also those of which `repr` fails, as it does of an int of more than 4300 digits."""
    with pytest.raises(DeviceError) as caught:
        SHOWN[door](wrong)
    assert "expected" in str(caught.value) or "GPU <negative int of 16610 bits>" in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("nbytes", [10.5, "64", None, float("nan")])
def test_bytes_are_whole_numbers(nbytes: Any) -> None:
    for door in ("bytes", "borrowed bytes"):
        with pytest.raises(TypeError, match=re.escape(f"nbytes: expected a number of bytes, got {nbytes!r}")):
            SHOWN[door](nbytes)
