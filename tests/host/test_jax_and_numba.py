"""JAX's immutable arrays; Numba's device arrays, which have `__cuda_array_interface__` and no DLPack."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, OwnershipError
from cuda_async.foreign import LEGACY_STREAM
from cuda_async.unsafe import async_on
from cutile import api, f32


@ct.entry
def saxpy(y: ct.Mut, a: ct.f32, x: ct.Tensor):
    """y = a * x + y."""
    y.store(a * ct.load_tile_like(x, y) + y.load())


class JaxArray:
    """A CPU array with the DLPack methods of JAX's arrays.

    Their arguments are keyword-only, and a stream is refused.
    """

    def __init__(self, array: Any, requests: list[dict[str, Any]]) -> None:
        self._array = array
        self._requests = requests

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if stream is not None:
            raise ValueError("stream must be None for CPU")
        self._requests.append({"max_version": max_version, "dl_device": dl_device, "copy": copy})
        return self._array.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


JaxArray.__module__ = "jaxlib._jax"  # `cutile.host.foreign` knows a library by this name


def test_arrays_of_jaxs_form_are_read_and_never_written(host: Device) -> None:
    requests: list[dict[str, Any]] = []
    values = np.arange(12, dtype=np.float32)
    array: Any = JaxArray(values, requests)
    x = api.from_dlpack(array)
    assert x.device_pointer() == values.ctypes.data
    # One request, for a versioned capsule: it can say that the array is read-only.
    assert requests == [{"max_version": (1, 0), "dl_device": None, "copy": None}]
    y = api.ones((12,), f32).sync()
    saxpy(y.mut.partition((4,)), 2.0, array).sync()  # straight into a kernel
    np.testing.assert_array_equal(y.to_numpy().sync(), 2 * values + 1)
    with pytest.raises(OwnershipError, match="lent it to be read"):
        api.fill(x, 1)
    with pytest.raises(OwnershipError, match="lent it to be read"):
        api.partition(array, (4,))
    np.testing.assert_array_equal(values, np.arange(12))


def test_jax_itself(host: Device) -> None:
    jax: Any = pytest.importorskip("jax")
    for dtype in (np.float32, np.int8, ml_dtypes.bfloat16):
        theirs = jax.numpy.arange(12, dtype=dtype).reshape(3, 4)
        ours = api.from_dlpack(theirs)
        assert ours.device_pointer() == theirs.unsafe_buffer_pointer()
        np.testing.assert_array_equal(ours.to_numpy().sync(), np.asarray(theirs))
        with pytest.raises(OwnershipError, match="lent it to be read"):
            api.fill(ours, 1)
    y = api.ones((3, 4), f32).sync()
    out = jax.dlpack.from_dlpack(y)
    assert out.unsafe_buffer_pointer() == y.device_pointer()
    with pytest.raises(OwnershipError, match="was given to another library"):
        api.fill(y, 2)
    np.testing.assert_array_equal(jax.numpy.asarray(out) * 3, np.full((3, 4), 3))
    del out
    gc.collect()
    api.fill(y, 2).sync()
    assert (y.to_numpy().sync() == 2).all()


class NumbaArray:
    """The part of Numba's device array that names its stream."""

    def __init__(self, stream: int | None) -> None:
        self.__cuda_array_interface__ = {"stream": stream}


NumbaArray.__module__ = "numba.cuda.cudadrv.devicearray"  # as above


@pytest.mark.parametrize(("interface_stream", "lender_stream"), [(None, LEGACY_STREAM), (7, 7)])
def test_numbas_default_stream_is_waited_for_too(
    host: Device, interface_stream: int | None, lender_stream: int
) -> None:
    from cutile.host.foreign import _lender  # pyright: ignore[reportPrivateUsage]

    lender = _lender(NumbaArray(interface_stream), host)
    assert lender is not None
    assert lender() == lender_stream


SLOW_ROUNDS = 20_000
"""Rounds of a loop of dependent operations: 10 us at the least, at 2 GHz and a cycle each. Meanwhile the host enqueues
work that would overtake the loop if nothing ordered them."""


@ct.entry
def spin(y: ct.Mut, rounds: ct.i32):
    """Take time."""
    t = y.load()
    for _ in range(rounds):
        t = t * 0.5 + 1.0
    y.store(t)


@pytest.mark.gpu
@pytest.mark.parametrize("own_stream", [False, True], ids=["default stream", "a stream"])
def test_numbas_device_arrays(own_stream: bool) -> None:
    cuda: Any = pytest.importorskip("numba.cuda")

    def slow(values: Any, rounds: Any, factor: Any) -> None:
        i = cuda.grid(1)
        if i < values.size:
            for _ in range(rounds):
                values[i] = values[i] * 0.5 + 1.0  # towards 2
            values[i] = factor * i

    kernel = cuda.jit(slow)
    stream = cuda.stream() if own_stream else 0
    blocks, threads = 128, 128  # Numba warns about launches of fewer blocks
    count = blocks * threads
    x = cuda.to_device(np.zeros(count, np.float32), stream=stream)
    y = cuda.to_device(np.ones(count, np.float32), stream=stream)
    with Device(0) as device:
        own = device.new_stream()
        z = api.zeros((1024,), f32).sync()

        def late_saxpy(rounds: int) -> Any:
            def read_x(_: Any) -> Any:
                return saxpy(api.partition(y, (1024,)), 2.0, x)

            return spin(z.mut.partition((1024,)), rounds).then(read_x)

        kernel[blocks, threads, stream](x, 0, 0)  # all is compiled before anything may overtake
        late_saxpy(1).sync_on(own)
        for their_rounds, our_rounds in [(SLOW_ROUNDS, 1), (1, SLOW_ROUNDS)] * 3:
            # Numba's kernel writes x, ours reads it, Numba's next one overwrites it. The host waits for none of them.
            # Our stream waits for Numba's slow kernel, or Numba's stream for our slow one.
            kernel[blocks, threads, stream](x, their_rounds, 1)
            async_on(late_saxpy(our_rounds), own)
            kernel[blocks, threads, stream](x, 0, -100)
            own.synchronize()
        np.testing.assert_array_equal(y.copy_to_host(stream=stream), 1 + 12 * np.arange(count, dtype=np.float32))
        ours = api.arange(count, f32).sync()
        seen = cuda.as_cuda_array(ours)
        assert seen.shape == (count,)
        np.testing.assert_array_equal(seen.copy_to_host(), np.arange(count, dtype=np.float32))
