"""Tensors of other libraries as ours and ours as theirs: the same memory, ordered, held, and lent."""

from __future__ import annotations

import ctypes
import gc
import importlib
import re
import weakref
from array import array as typed_array
from collections.abc import Callable
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, NotReadyError, OwnershipError
from cuda_async.foreign import ForeignStorage
from cuda_async.testing import CheckedDriver, SimDriver
from cuda_async.unsafe import async_on
from cutile import api, bf16, f32, f64, i16, u8
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.foreign import read_capsule
from cutile.launch.views import View
from kernels.gemm import matmul


@ct.entry
def saxpy(y: ct.Mut, a: ct.f32, x: ct.Tensor):
    """y = a * x + y."""
    y.store(a * ct.load_tile_like(x, y) + y.load())


class Wrapped:
    """Another library's tensor on the CPU: it has `__dlpack__`, and is no NumPy array."""

    def __init__(self, array: Any, version: bool = True) -> None:
        self.array = array
        self._version = version

    def __dlpack__(self, **arguments: Any) -> Any:
        if not self._version and "max_version" in arguments:
            raise TypeError("an old library")
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def _plain(array: Any) -> Any:
    return array


def _old(array: Any) -> Any:
    return Wrapped(array, version=False)


# -- in ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [_plain, Wrapped, _old], ids=["numpy", "new", "old"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
def test_memory_is_shared(host: Device, wrap: Callable[[Any], Any], dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    x = api.from_dlpack(wrap(array))
    assert (x.shape, x.strides, x.dtype.numpy, x.device) == ((2, 3, 4), (12, 4, 1), np.dtype(dtype), host)
    assert x.device_pointer() == array.ctypes.data
    array[0, 0, 0] = 1
    np.testing.assert_array_equal(x.to_numpy().sync(), array)
    api.fill(x, 1).sync()
    assert (array == 1).all()


@pytest.mark.parametrize("wrap", [_plain, Wrapped], ids=["numpy", "dlpack"])
def test_strides_are_kept(host: Device, wrap: Callable[[Any], Any]) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for part in (array.T, array[1:, ::2], array[::-1], array[2, 3:4]):
        np.testing.assert_array_equal(api.from_dlpack(wrap(part)).to_numpy().sync(), part)


def test_other_protocols(host: Device) -> None:
    assert api.from_foreign(typed_array("h", [1, 2, 3])).dtype is i16
    buffer = bytearray(b"abc")
    api.fill(api.from_foreign(buffer), 122).sync()
    assert buffer == b"zzz"
    assert api.from_foreign(memoryview(buffer)[::2]).shape == (2,)

    class Interface:
        """What has `__array_interface__` only."""

        def __init__(self, array: Any) -> None:
            self.keep = array
            self.__array_interface__ = array.__array_interface__

    assert api.from_foreign(Interface(np.arange(3.0))).to_numpy().sync().tolist() == [0, 1, 2]
    half = api.from_foreign(np.ones(3, ml_dtypes.bfloat16))
    assert half.dtype is bf16


def test_straight_into_kernels(host: Device) -> None:
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    wrapped = Wrapped(x)
    out = saxpy(api.partition(y, (4,)), 2.0, wrapped).sync()
    assert out.x is wrapped
    np.testing.assert_array_equal(y, 2 * x + 1)
    stream = host.new_stream()
    bound = saxpy(api.partition(Wrapped(y), (4,)), 1.0, wrapped).bind(stream)
    bound()
    bound()
    stream.synchronize()
    np.testing.assert_array_equal(y, 4 * x + 1)


def test_what_a_kernel_writes_is_partitioned(host: Device) -> None:
    x: Any = Wrapped(np.ones(8, np.float32))
    with pytest.raises(
        ArgumentTypeError, match=re.escape("partition it first: api.partition(y, (64, 64)), which shares")
    ):
        saxpy(x, 2.0, x)


def test_aliases_are_found_through_any_look(host: Device) -> None:
    array = np.ones(8, np.float32)
    with pytest.raises(
        OwnershipError, match="argument 'x' would be read, but the same operation writes the same memory"
    ):
        saxpy(api.partition(array, (4,)), 2.0, Wrapped(array))
    op = api.fill(api.from_dlpack(array[:4]), 1)
    with pytest.raises(OwnershipError, match=r"the operation made at .*test_exchange"):
        api.fill(api.from_dlpack(array[3:]), 1)
    api.fill(api.from_dlpack(array[4:]), 2).sync()
    op.sync()
    assert array.tolist() == [1] * 4 + [2] * 4


def test_graphs_over_different_arrays_live_beside_each_other(host: Device) -> None:
    stream = host.new_stream()
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    arrays = [np.zeros((4, 4), np.float32) for _ in range(2)]
    graphs = [
        matmul(api.from_dlpack(Wrapped(x)), api.from_dlpack(x), out=api.from_dlpack(array)).graph_on(stream)
        for array in arrays
    ]
    api.fill(api.from_dlpack(np.zeros(4)), 1).sync()
    with pytest.raises(OwnershipError, match=r"the graph captured at .*test_exchange"):
        api.fill(api.from_dlpack(arrays[1]), 1).sync()
    for graph in graphs:
        graph.launch().sync()
        graph.close()
    assert all((array == x @ x).all() for array in arrays)


def test_read_only_memory_stays_so(host: Device) -> None:
    array = np.ones(8, np.float32)
    array.flags.writeable = False
    for x in (api.from_dlpack(array), api.from_dlpack(Wrapped(array)), api.from_foreign(b"abcdefgh")):
        for write in (
            lambda x=x: api.fill(x, 1),
            lambda x=x: x.mut,
            lambda x=x: x.partition((4,)),
            lambda x=x: x[1:].mut,
        ):
            with pytest.raises(OwnershipError, match="belongs to another library, which lent it to be read"):
                write()
        assert x.dup().sync().shape == (8,)


def test_the_cuda_array_interface_tells_of_read_only_memory(sim: SimDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "array_interface", "__cuda_array_interface__", raising=False)
    device = Device.from_driver(sim)
    for read_only in (False, True):
        storage = ForeignStorage(device, None, span=(64, 80), read_only=read_only)
        tensor = api.Tensor(View(storage, 64, f32, (4,), (1,)))
        assert tensor.__cuda_array_interface__["data"] == (64, read_only)


def test_the_owner_lives_as_long_as_needed(host: Device) -> None:
    class Owned(np.ndarray[Any, Any]):
        """An array that can be referred to weakly."""

    array = np.ones(1 << 20, np.float32).view(Owned)
    seen = weakref.ref(array)
    x = api.from_dlpack(array)
    copy = x[1:].dup()
    del array, x
    gc.collect()
    assert seen() is not None
    assert copy.sync().shape == ((1 << 20) - 1,)
    del copy
    gc.collect()
    host.collect()
    assert seen() is None


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "list": (lambda: api.from_dlpack([1, 2]), ArgumentTypeError, "list has no __dlpack__"),
    "nothing": (lambda: api.from_foreign(3), ArgumentTypeError, "expected a tensor of another library .*, got int"),
    "complex": (lambda: api.from_dlpack(np.ones(3, "c8")), ArgumentTypeError, "complex64"),
    "complex dlpack": (lambda: api.from_dlpack(Wrapped(np.ones(3, "c8"))), ArgumentTypeError, "type code 5 with 64"),
    "byte order": (lambda: api.from_dlpack(np.ones(3, ">f4")), ArgumentTypeError, "another order"),
    "byte strides": (
        lambda: api.from_foreign(np.zeros(4, "u1,f4")["f1"]),
        ArgumentError,
        "no multiples of the 4 of an element",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(host: Device, case: str) -> None:
    make, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        make()


# -- out --------------------------------------------------------------------------------------


def test_numpy_reads_our_memory(host: Device) -> None:
    y = api.arange(12, f64).reshape((3, 4)).sync()
    for ours, expected in (
        (y, np.arange(12.0).reshape(3, 4)),
        (y.T[1:, ::-1], np.arange(12.0).reshape(3, 4).T[1:, ::-1]),
    ):
        theirs = np.from_dlpack(ours)
        assert theirs.ctypes.data == ours.device_pointer()
        assert not theirs.flags.writeable
        np.testing.assert_array_equal(theirs, expected)


def test_an_export_reads(host: Device) -> None:
    y = api.zeros((8,)).sync()
    a, b = np.from_dlpack(y), np.from_dlpack(y)
    y.to_numpy().sync()  # reads on
    with pytest.raises(
        OwnershipError, match=r"was given to another library at .*test_exchange\.py:\d+, which reads it. Delete what"
    ):
        api.fill(y, 1)
    del a
    with pytest.raises(OwnershipError, match="given to another library"):
        saxpy(y.mut.partition((4,)), 1.0, api.ones((8,)).sync())
    del b
    api.fill(y, 1).sync()


def test_a_writable_export_excludes_others(host: Device) -> None:
    y = api.zeros((8,)).sync()
    theirs = np.from_dlpack(cast("Any", y.mut))
    assert theirs.flags.writeable
    theirs[:] = 3
    with pytest.raises(OwnershipError, match="which writes it"):
        y.to_numpy()
    with pytest.raises(OwnershipError, match="which writes it"):
        np.from_dlpack(y)
    del theirs
    assert (y.to_numpy().sync() == 3).all()
    op = api.fill(y, 1)
    with pytest.raises(OwnershipError, match="'the tensor given to another library' would be written"):
        np.from_dlpack(cast("Any", y.mut))
    op.sync()


def test_the_memory_outlives_our_tensor(host: Device) -> None:
    theirs = np.from_dlpack(api.full(5, (1 << 16,)).sync())
    gc.collect()
    api.zeros((1 << 16,)).sync()
    assert (theirs == 5).all()


def test_the_values_are_waited_for(sim: SimDriver, sim_device: Device, host: Device) -> None:
    stream = host.new_stream()
    x = api.zeros((8,)).sync_on(stream)
    gate: list[int] = []
    x.storage.use(stream, write=True)
    address = int(x.device_pointer())

    def late() -> None:
        sum(range(300_000))
        ctypes.memset(address, 0x40, 32)
        gate.append(1)

    stream.call(late)
    assert np.from_dlpack(x).view(np.uint8)[0] == 0x40
    assert gate == [1]


def test_not_inside_a_submission(host: Device) -> None:
    with pytest.raises(NotReadyError, match="Do it after sync"):
        api.zeros((8,)).map(np.from_dlpack).sync()


def test_shared_tensors_and_held_ones(host: Device) -> None:
    x = api.ones((4,)).sync()
    handle = x.shared()
    np.testing.assert_array_equal(np.from_dlpack(handle), np.ones(4))
    with pytest.raises(OwnershipError, match="held by the shared handle"):
        np.from_dlpack(x)
    assert not hasattr(handle, "__cuda_array_interface__")


BUFFER_ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "copy": ({"copy": True}, "copies are made by dup"),
    "device": ({"dl_device": (2, 0)}, r"on device \(1, 0\), not \(2, 0\)"),
    "stream": ({"stream": 7}, "no stream to order"),
}


@pytest.mark.parametrize("case", BUFFER_ERRORS)
def test_what_an_export_refuses(host: Device, case: str) -> None:
    arguments, message = BUFFER_ERRORS[case]
    x = api.ones((4,)).sync()
    with pytest.raises(BufferError, match=message):
        x.__dlpack__(**arguments)
    api.fill(x, 1).sync()  # and lends nothing


def test_exports_are_ordered_with_the_consumers_stream(sim_device: Device, sim: SimDriver) -> None:
    ours, theirs = sim_device.new_stream(), sim_device.new_stream()
    x = api.full(3, (4,)).sync_on(ours)
    x.storage.use(ours, write=True)
    address = int(x.device_pointer())
    ours.call(lambda: _set(address, 5))
    capsule = x.__dlpack__(stream=theirs.cu_stream(), max_version=(1, 0))
    assert read_capsule(capsule).device == (12, 0)
    seen: list[float] = []
    theirs.call(lambda: seen.append(ctypes.c_float.from_address(address).value))  # waits for ours
    del capsule
    gc.collect()
    api.fill(x, 7).sync_on(ours)  # waits for theirs
    assert seen == [5]
    with pytest.raises(BufferError, match="stream 0 is ambiguous"):
        x.__dlpack__(stream=0)
    assert read_capsule(x.__dlpack__(stream=-1)).shape == (4,)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("parts", ["another part", "another part, twice", "before the loan"])
def test_the_end_of_a_loan_hides_no_other_write(seed: int, parts: str) -> None:
    """A library has one half of the memory, while we write the other."""
    driver = CheckedDriver(SimDriver(seed))
    device = Device.from_driver(driver)
    first, second, other, theirs = (device.new_stream() for _ in range(4))
    x = api.zeros((64,)).sync_on(first)
    if parts == "before the loan":
        async_on(api.fill(x[32:].mut, 7), first)
    capsule = x[:32].__dlpack__(stream=theirs.cu_stream(), max_version=(1, 0))
    if parts != "before the loan":
        async_on(api.fill(x[32:48].mut, 7), first)
        async_on(api.fill(x[48:].mut, 7), second if parts.endswith("twice") else first)
    del capsule
    gc.collect()
    assert x.to_numpy().sync_on(other).tolist() == [0] * 32 + [7] * 32
    assert driver.races == []


def _set(address: int, number: float) -> None:
    ctypes.c_float.from_address(address).value = number


def test_between_devices_of_one_process(sim_device: Device) -> None:
    stream = sim_device.new_stream()
    x = api.full(3, (4,), u8).sync_on(stream)
    with pytest.raises(ArgumentError, match="DLPack kind 12"):
        api.from_dlpack(Wrapped(x))
    y = api.from_dlpack(Wrapped(x), device=sim_device)
    assert y.device is sim_device
    assert (y.to_numpy().sync_on(stream) == 3).all()
    with pytest.raises(OwnershipError):
        api.fill(x, 1)


# -- libraries that may not be here -----------------------------------------------------------


def test_torch(host: Device) -> None:
    torch: Any = pytest.importorskip("torch")
    t = torch.arange(8, dtype=torch.float32)
    x = api.from_dlpack(t)
    assert (x.dtype, x.shape, x.device_pointer()) == (f32, (8,), t.data_ptr())
    y = torch.ones(8)
    out = saxpy(api.partition(y, (4,)), 2.0, t).sync()
    assert out.x is t
    assert y.tolist() == [2 * i + 1 for i in range(8)]
    theirs = torch.from_dlpack(api.full(3, (2, 2), bf16).sync())
    assert theirs.dtype is torch.bfloat16
    assert theirs.tolist() == [[3, 3], [3, 3]]
    assert api.from_dlpack(torch.ones(4, 6).T[1:]).strides == (1, 6)
    ours = api.zeros((3,)).sync()
    torch.from_dlpack(cast("Any", ours.mut)).fill_(2)
    assert ours.to_numpy().sync().tolist() == [2, 2, 2]
    with pytest.raises(ArgumentError, match=r"pass tensor.detach\(\)"):
        api.from_dlpack(torch.ones(3, requires_grad=True))
    with pytest.raises(ArgumentTypeError, match="complex64"):
        api.from_dlpack(torch.ones(3, dtype=torch.complex64))


@pytest.fixture(params=["torch", "cupy"])
def library(request: pytest.FixtureRequest) -> Any:
    name: str = request.param
    pytest.importorskip(name)
    return importlib.import_module(name)


@pytest.mark.gpu
def test_a_gpu_librarys_stream_and_ours_take_turns(library: Any) -> None:
    device, torch = Device(), library.__name__ == "torch"
    n = 1 << 22
    side = library.cuda.Stream() if torch else library.cuda.Stream(non_blocking=True)
    with device, library.cuda.stream(side) if torch else side:
        t = library.zeros(n, dtype=library.float32, **({"device": "cuda"} if torch else {}))
        ones = library.ones_like(t)
        part, expected, ours = api.partition(t, (1024,)), 0.0, device.new_stream()
        bound = saxpy(part, 2.0, ones).bind(ours)
        for step in range(20):
            t += step  # on the library's stream
            bound()  # nobody waits on the host
            expected += step + 2
        saxpy(part, 2.0, ones).sync_on(ours)
        t *= 2
        expected += 2
        assert float(t.min()) == float(t.max()) == 2 * expected
    exported = library.from_dlpack(api.full(3, (n,)).sync_on(device.new_stream()))
    assert float(exported.sum()) == 3 * n


@pytest.mark.gpu
def test_the_cuda_array_interface() -> None:
    cupy: Any = pytest.importorskip("cupy")
    with Device():
        y = api.arange(8).sync()
        theirs = cupy.asarray(y)
        assert theirs.data.ptr == y.device_pointer()
        assert cupy.asnumpy(theirs).tolist() == list(range(8))

        class Interface:
            """What has the interface only, as Numba's arrays."""

            def __init__(self, array: Any) -> None:
                self.keep = array
                self.__cuda_array_interface__ = array.__cuda_array_interface__

        ours = api.from_foreign(Interface(cupy.arange(6, dtype=cupy.float32).reshape(2, 3).T))
        assert ours.to_numpy().sync().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_refused_export_keeps_no_tensor() -> None:
    tensor = api.zeros((4,)).sync()
    with pytest.raises(BufferError, match="no stream to order") as refusal:
        tensor.__dlpack__(stream=5)
    api.fill(tensor, 1).sync()  # while the traceback lives
    assert refusal.traceback
    half = api.zeros((4,), "tf32").sync()
    with pytest.raises(BufferError, match="no code for tf32") as refusal:
        half.__dlpack__()
    api.fill(half, 1).sync()
    assert refusal.traceback
