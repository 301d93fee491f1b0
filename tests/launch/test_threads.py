"""Kernels from several threads on several streams, for a thousand rounds, on every driver; and after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cuda_async import Device
from cutile.host import api
from tests.support.kernels import kernel
from tests.support.kinds import EVERY, of_kind

ROUNDS = 1000
ROOT = Path(__file__).parents[2]
STEP = kernel(
    "def step(y: Mut, a: f32, x: Tensor):\n    y.store(a * ct.load_tile_like(x, y) + y.load())\n",
)


@pytest.fixture(params=EVERY)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with of_kind(request.param, seed=3) as device:
        yield device


@pytest.mark.slow
def test_two_threads_on_several_streams(device: Device) -> None:
    failures: list[BaseException] = []
    extent = 100 if device.kind == "sim" else 5000  # the simulator walks kernels with NumPy

    def work(number: int) -> None:
        try:
            with device:
                streams = [device.new_stream() for _ in range(3)]
                x = api.ones((extent,)).sync_on(streams[0])
                y = api.zeros((extent,)).sync_on(streams[1])
                for count in range(ROUNDS):
                    STEP(y.mut.partition((1024,)), float(number + 1), x).sync_on(streams[count % 3])
                result = y.to_numpy().sync_on(streams[0])
            np.testing.assert_array_equal(result, np.full(extent, ROUNDS * (number + 1), np.float32))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "deadlock"
    assert not failures, failures


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_kernels_run_in_a_forked_child() -> None:
    script = textwrap.dedent(
        """
        import os, threading, warnings
        warnings.simplefilter("ignore")  # Python warns of forks beside threads, which is what is tested
        import numpy as np
        from cuda_async import Device
        from cutile.host import api
        from tests.launch.test_threads import STEP

        def run(rounds):
            with Device.host():
                x, y = api.ones((3000,)).sync(), api.zeros((3000,)).sync()
                for _ in range(rounds):
                    STEP(y.mut.partition((256,)), 2.0, x).sync()
                assert np.all(y.to_numpy().sync() == 2.0 * rounds)

        def in_threads():
            threads = [threading.Thread(target=run, args=(200,)) for _ in range(2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()

        in_threads()                       # workers exist, kernels are compiled
        child = os.fork()
        if child == 0:
            in_threads()
            os._exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        in_threads()
        print("both fine")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.stdout.strip() == "both fine", done.stderr
