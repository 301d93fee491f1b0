"""Names and arguments of torch, CuPy and NumPy on the facades of both packages: each error says what to write."""

from __future__ import annotations

import re
from typing import Any

import pytest

import cuda_async
import cutile
from cuda_async.hints import RUNTIME
from cutile import api

MODULES: dict[str, Any] = {"cuda_async": cuda_async, "cutile": cutile, "cutile.api": api}
RUNNER, HOST = MODULES["cuda_async"], MODULES["cutile.api"]


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        ("cuda_async", "synchronize", "write op.sync(), await op, stream.synchronize() or device.synchronize()"),
        ("cuda_async", "current_stream", "write stream = Device(0).new_stream(), and op.sync_on(stream)"),
        ("cuda_async", "zeros", "write cutile.api.zeros(shape, dtype), whose operation yields a tensor"),
        ("cuda_async", "mem_get_info", "write device.memory_info()"),
        ("cuda_async", "Devise", "did you mean 'Device'?"),
        ("cutile", "synchronize", "write op.sync(), await op, stream.synchronize() or device.synchronize()"),
        ("cutile", "set_device", "write with Device(1): ..., or set_default_device(Device(1))"),
        ("cutile", "Stream", "write cuda_async.Stream"),
        ("cutile.api", "synchronize", "write op.sync(), await op, stream.synchronize() or device.synchronize()"),
        ("cutile.api", "copy", "write api.dup(tensor)"),
        ("cutile.api", "load", "write api.from_numpy(np.load(path))"),
        ("cutile.api", "to_numpy", "write tensor.numpy(), or await tensor.to_numpy()"),
    ],
)
def test_a_name_from_elsewhere_has_its_counterpart(module: str, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError) as failure:
        getattr(MODULES[module], name)
    assert str(failure.value) == f"module {module!r} has no attribute {name!r}; {remedy}"


def test_a_name_that_is_near_none_is_refused_plainly() -> None:
    with pytest.raises(AttributeError, match=r"^module 'cuda_async' has no attribute 'xyzzy'$"):
        _ = MODULES["cuda_async"].xyzzy
    assert not hasattr(cuda_async, "__wrapped__")


def test_counterparts_are_of_names_that_are_missing() -> None:
    assert RUNTIME.keys().isdisjoint(cuda_async.__all__)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("cuda", "; write Device(0) or Device('cuda:1')"),
        ("current", "; write default_device()"),
        ("cpu", "; write Device.host()"),
        ("xyzzy", ""),
    ],
)
def test_names_that_devices_have_elsewhere(name: str, remedy: str) -> None:
    with pytest.raises(AttributeError) as failure:
        getattr(cuda_async.Device, name)
    assert str(failure.value) == f"Device has no attribute {name!r}{remedy}"


def test_asyncio_is_given_a_future() -> None:
    op = cuda_async.value(1)
    with pytest.raises(AttributeError, match=r"asyncio takes op\.into_future\(\)$"):
        _ = getattr(op, "add_done_callback")  # noqa: B009 - asyncio.wait asks for it
    assert op.into_future().sync() == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: HOST.arange(2, 8), "got the numbers 2 and 8; it counts from 0; write api.from_numpy"),
        (
            lambda: HOST.arange(0, 8, 2),
            "arange takes (length, dtype), got 3 arguments: it counts from",
        ),
        (lambda: HOST.arange(start=2, stop=8), "arange takes no 'start': it counts from 0; write api"),
        (
            lambda: HOST.zeros((3,), device="cuda"),
            "zeros takes no 'device': an op runs where a stream",
        ),
        (
            lambda: HOST.full(shape=(3,), fill_value=1.0),
            "full takes no 'fill_value': it is called value",
        ),
        (lambda: HOST.ones(2, 3, 4), "ones takes (shape, dtype), got 3 arguments: a shape is one"),
        (
            lambda: RUNNER.empty((3,)),
            "empty: expected a function that makes an operation, got (3,); memory",
        ),
        (
            lambda: RUNNER.empty(lambda: 3).sync(),
            "empty: the function must return an operation (DeviceOp), got int",
        ),
    ],
)
def test_an_argument_from_elsewhere_has_its_counterpart(call: Any, words: str) -> None:
    with pytest.raises(TypeError) as failure:
        call()
    assert words in str(failure.value)


def test_a_tensor_says_how_it_is_saved() -> None:
    tensor: Any = api.zeros((2,)).sync()
    with pytest.raises(AttributeError, match=r"np\.save\(path, tensor\.numpy\(\)\)"):
        tensor.save("x.npy")


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: cutile.ceil_div(7, 2), "-(-a // b)"),
        (lambda: cutile.iota(7), "api.arange(length, dtype)"),
        (lambda: cutile.constant(0, (7,), cutile.f32), "api.full(value, shape, dtype)"),
        (lambda: cutile.randn(0, 7), "api.randn(mean, std, shape)"),
    ],
)
def test_a_function_of_kernels_names_its_like_on_the_host(call: Any, remedy: str) -> None:
    with pytest.raises(cutile.ArgumentTypeError, match=rf"On the host write {re.escape(remedy)}\.$"):
        call()
