"""Devices: found, interned, chosen; a GPU that is not there is refused with the remedy."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cuda_async import (
    ContextError,
    Device,
    DeviceError,
    DeviceLostError,
    DriverError,
    LaunchError,
    NoDeviceError,
    OutOfMemoryError,
    SingleStream,
    StreamPoolRoundRobin,
    default_device,
    device_count,
    set_default_device,
    set_global_policy,
)
from cuda_async.config import config
from cuda_async.core.device import as_device
from cuda_async.driver.cuda import probe
from cuda_async.driver.cuda.probe import Probe
from cuda_async.driver.interface import DeviceProperties
from cuda_async.testing import SimDriver


def test_devices_are_interned() -> None:
    assert Device.host() is Device.host() is Device.parse("cpu") is Device.of_kind("host")
    assert pickle.loads(pickle.dumps(Device.host())) is Device.host()
    assert Device.host().kind == "host"
    assert device_count("host") == 1


def test_the_best_device_is_a_gpu_or_the_cpu() -> None:
    assert Device.best().kind == ("cuda" if device_count() else "host")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Probe(0, "no NVIDIA driver was found (looked for libcuda.so.1); install"), "looked for libcuda"),
        (Probe(2, ""), "there are 2, numbered from 0"),
    ],
)
def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch, found: Probe, message: str) -> None:
    monkeypatch.setattr(probe, "probe", lambda: found)
    with pytest.raises(NoDeviceError, match=message) as caught:
        Device(7)
    assert caught.value.device_id == 7
    assert "GPU 7 was asked for" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


def test_the_probe_says_what_it_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_LIBRARIES", {sys.platform: ("libnowhere-a.so", "libnowhere-b.so")})
    answer = probe.probe.__wrapped__()
    assert answer.devices == 0
    assert "libnowhere-a.so and libnowhere-b.so" in answer.reason
    assert "Device.host()" in answer.reason


class FakeLibrary:
    """A driver whose functions return these codes, and that counts two devices."""

    def __init__(self, init: int, count: int = 0) -> None:
        self._codes = init, count

    def load(self, names: tuple[str, ...]) -> FakeLibrary:
        return self

    def cuInit(self, _: int) -> int:
        return self._codes[0]

    def cuDeviceGetCount(self, number: Any) -> int:
        number._obj.value = 2
        return self._codes[1]


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (FakeLibrary(100), "the NVIDIA driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES"),
        (FakeLibrary(0, 100), "the NVIDIA driver sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES"),
        (FakeLibrary(0, 3), r"the NVIDIA driver sees no device \(error 3\); check"),
        (FakeLibrary(999), "cuInit failed with error 999; nvidia-smi says more"),
    ],
)
def test_the_probe_tells_hidden_devices_from_a_driver_that_fails(
    monkeypatch: pytest.MonkeyPatch, library: FakeLibrary, reason: str
) -> None:
    monkeypatch.setattr(probe, "_load", library.load)
    answer = probe.probe.__wrapped__()
    assert answer.devices == 0
    assert re.search(reason, answer.reason)


def test_the_probe_takes_a_module_named_cuda_for_missing_bindings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cuda.py").write_text("raise RuntimeError('not for import')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.split(".")[0] == "cuda"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(probe, "_load", FakeLibrary(0).load)
    answer = probe.probe.__wrapped__()
    assert answer.devices == 0
    assert "there are 2 NVIDIA devices, but the package cuda-bindings is missing" in answer.reason


@pytest.mark.parametrize("name", ["gpu0", "cuda:x", "", "cpu:1"])
def test_names_that_are_no_device(name: str) -> None:
    with pytest.raises(ValueError, match="expected 'cpu', 'cuda'"):
        Device.parse(name)


def test_devices_are_named_by_numbers_and_texts() -> None:
    host = Device.host()
    assert Device("cpu") is host
    assert as_device("host") is as_device(host) is host
    for wrong in (None, 1.0, True, b"cpu"):
        with pytest.raises(TypeError, match="expected a device, the number of a GPU, or a name such as 'cpu'"):
            as_device(wrong)  # type: ignore[arg-type]


def test_what_is_no_device_is_no_default() -> None:
    before = default_device()
    with pytest.raises(ValueError, match="expected 'cpu', 'cuda'"):
        set_default_device("gpu0")
    assert default_device() is before
    set_default_device("cpu")
    try:
        assert default_device() is Device.host()
    finally:
        set_default_device(None)


def test_defaults() -> None:
    host = Device.host()
    before = default_device()
    set_default_device(host)
    try:
        assert default_device() is host
    finally:
        set_default_device(None)
    assert default_device() is before
    with host:
        assert default_device() is host


def test_a_device_that_the_environment_names_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_async.core.device.config", lambda: replace(config(), device="gpu0"))
    monkeypatch.setattr("cuda_async.core.device._process_default", [])
    with pytest.raises(ValueError, match="expected 'cpu', 'cuda'") as caught:
        default_device()
    assert caught.value.__notes__ == ["the variable CUDA_ASYNC_DEVICE is 'gpu0'"]


def test_events_of_different_kinds_are_not_compared() -> None:
    devices = (Device.host(), Device.from_driver(SimDriver(seed=1)))
    start, end = (device.new_event(timing=True) for device in devices)
    start.record(devices[0].new_stream())
    end.record(devices[1].new_stream())
    with pytest.raises(ValueError, match="end: expected an event of a device like cpu, got one of sim:0"):
        start.elapsed_time(end)


def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_ASYNC_WORKERS", "many")
    with pytest.raises(ValueError, match="CUDA_ASYNC_WORKERS='many': expected a number"):
        config.__wrapped__()
    monkeypatch.setenv("CUDA_ASYNC_WORKERS", "3")
    monkeypatch.setenv("CUDA_ASYNC_POOL_BYTES", "1e6")
    settings = config.__wrapped__()
    assert (settings.workers, settings.pool_bytes) == (3, 1_000_000)
    monkeypatch.setenv("CUDA_ASYNC_EXIT_LIMIT_S", "inf")
    assert config.__wrapped__().exit_limit_s == threading.TIMEOUT_MAX  # what a join takes
    monkeypatch.setenv("CUDA_ASYNC_POOL_BYTES", "inf")
    with pytest.raises(ValueError, match="CUDA_ASYNC_POOL_BYTES='inf': expected a finite number"):
        config.__wrapped__()


@pytest.mark.parametrize(
    ("margin", "cluster", "held"), [(0, 1, 264), (8, 1, 248), (9, 4, 244), (130, 1, 4), (131, 8, 8)]
)
def test_a_stream_leaves_multiprocessors_free(margin: int, cluster: int, held: int) -> None:
    """Whole clusters, of 132 multiprocessors with two blocks each; one cluster at least."""

    class Gpu(SimDriver):
        @property
        def properties(self) -> DeviceProperties:
            return replace(super().properties, multiprocessor_count=132)

        def resident_blocks(self, function: object, threads: int, shared_bytes: int, cluster: int) -> int:
            return 264

    stream = Device.from_driver(Gpu()).new_stream(sm_margin=margin)
    assert stream.resident_blocks(None, 128, 0, cluster) == held


def test_a_margin_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="sm_margin: expected 0 or more"):
        Device.host().new_stream(sm_margin=-1)
    for wrong in (1.5, "8", float("nan")):
        with pytest.raises(TypeError, match="sm_margin: expected a whole number"):
            Device.host().new_stream(sm_margin=wrong)  # pyright: ignore[reportArgumentType]
    assert SingleStream(Device.host(), sm_margin=None).stream.sm_margin == 0  # as `Communicator.max_ctas` has it
    assert SingleStream(Device.host(), sm_margin=1000).stream.sm_margin == 1000  # without effect on a CPU


def test_only_config_reads_the_environment() -> None:
    package = Path(probe.__file__).parents[2]
    readers = [path.name for path in package.rglob("*.py") if re.search(r"\benviron\b|getenv", path.read_text())]
    assert readers == ["config.py"]


@pytest.mark.parametrize(
    ("error", "builtin", "text"),
    [
        (DriverError(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "bad"), RuntimeError, "CUDA_ERROR_ILLEGAL_ADDRESS (700): bad"),
        (OutOfMemoryError(2, "CUDA_ERROR_OUT_OF_MEMORY", "full"), MemoryError, "CUDA_ERROR_OUT_OF_MEMORY (2): full"),
        (DeviceLostError(719, "CUDA_ERROR_LAUNCH_FAILED", "x"), RuntimeError, "CUDA_ERROR_LAUNCH_FAILED (719): x"),
        (ContextError(3, "gone"), RuntimeError, "device context error (device_id=3): gone"),
        (LaunchError("grid"), ValueError, "grid"),
    ],
)
def test_errors_inherit_what_a_user_expects(error: DeviceError, builtin: type[Exception], text: str) -> None:
    assert isinstance(error, DeviceError)
    assert isinstance(error, builtin)
    assert str(error) == text
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == text


def test_a_device_waits_for_all_its_streams_where_one_failed(sim: SimDriver) -> None:
    device = Device.from_driver(sim)
    policy = StreamPoolRoundRobin(device, 3)
    set_global_policy(device, policy)

    called: list[int] = []

    def fail(number: int) -> None:
        called.append(number)
        raise RuntimeError(f"on stream {number}")

    for number, stream in enumerate(policy.streams):
        for _ in range(20 * number):  # so that the work of later streams takes longer
            stream.call(lambda: None)
        stream.call(partial(fail, number))
    with pytest.raises(RuntimeError, match="on stream 0"):
        device.synchronize()
    assert sorted(called) == [0, 1, 2]
