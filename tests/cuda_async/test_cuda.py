"""What only a GPU can show: a dead context, a fork after CUDA was used, foreign contexts."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cuda_async import Device
from tests.cuda_async.test_process import expect
from tests.cuda_async.work import Affine, Read, words

pytestmark = pytest.mark.gpu


def test_a_trap_loses_the_device_for_everything_on_it() -> None:
    expect(
        """
    device = Device(0)
    storage = words(1, count=64).sync_on(device.new_stream())

    class Trap(DeviceOp[None]):
        def execute(self, context):
            trap(context.stream)

    async def main():
        with device:
            failures = await asyncio.gather(
                Trap().into_future(), Affine(storage, 2, 0).into_future(), return_exceptions=True
            )
        print([type(failure).__name__ for failure in failures])

    asyncio.run(main())
    try:
        value(1).sync_on(device.new_stream())
    except DeviceLostError as error:
        print(error.name, "in" in str(error))
    with Device.host():
        print(value(2).sync())
    del storage
    gc.collect()
    """,
        "['DeviceLostError', 'DeviceLostError']\nCUDA_ERROR_LAUNCH_FAILED True\n2",
    )


def test_the_child_of_a_fork_is_told() -> None:
    expect(
        """
    import warnings
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    device = Device(0)
    stream = device.new_stream()
    storage = words(1, count=64).sync_on(stream)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            value(1).sync_on(stream)
        except ContextError as error:
            print("spawn" in str(error), flush=True)
        with Device.host():
            print(value(2).sync(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(Read(storage).sync_on(stream)[0])
    """,
        "True\n2\n1",
    )


def test_another_librarys_context_is_restored() -> None:
    from cuda_async.driver.cuda.api import check, cu

    device = Device(0)
    storage = words(1, count=64).sync_on(device.new_stream())
    handle = check(cu.cuDeviceGet(0), cu.cuDeviceGet)
    other = check(cu.cuCtxCreate(None, 0, handle), cu.cuCtxCreate)
    try:
        stream = device.new_stream()
        assert Affine(storage, 2, 0).then(Read).sync_on(stream)[0] == 2

        async def main() -> int:
            with device:
                return (await Read(storage))[0]

        assert asyncio.run(main()) == 2
        assert int(check(cu.cuCtxGetCurrent(), cu.cuCtxGetCurrent)) == int(other)
    finally:
        check(cu.cuCtxDestroy(other), cu.cuCtxDestroy)


def test_a_thread_without_a_context_keeps_that_of_the_first_device() -> None:
    from cuda_async.driver.cuda.api import check, cu

    device = Device(0)
    stream = device.new_stream()
    storage = words(1, count=64).sync_on(stream)
    seen: list[int] = []

    def work() -> None:
        seen.append(int(check(cu.cuCtxGetCurrent(), cu.cuCtxGetCurrent)))
        Affine(storage, 2, 0).sync_on(stream)  # the driver knows whose the stream is
        words(1).sync_on(stream)  # memory is made in the context that is current
        seen.append(int(check(cu.cuCtxGetCurrent(), cu.cuCtxGetCurrent)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    primary = check(cu.cuDevicePrimaryCtxRetain(0), cu.cuDevicePrimaryCtxRetain)
    assert seen == [0, int(primary)]
    check(cu.cuDevicePrimaryCtxRelease(0), cu.cuDevicePrimaryCtxRelease)
    assert Read(storage).sync_on(stream)[0] == 2


def test_the_pool_keeps_memory_until_it_is_trimmed() -> None:
    expect(
        """
    device = Device(0)
    stream = device.new_stream()
    stream.driver.free(stream.driver.allocate(256 << 20))
    stream.synchronize()
    print(device.memory_info().reserved >= 256 << 20)
    device.driver.trim()
    print(device.memory_info().reserved)
    """,
        "True\n0",
    )
