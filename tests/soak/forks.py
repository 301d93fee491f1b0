"""Part of the soak: children forked while other threads submit. Each runs operations of its own, and ends in time."""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
import traceback
import warnings
from typing import Any

from tests.soak.part import Outcome, Part

_LIMIT_S = 30
_THREADS = 3


def run(rounds: int, seed: int) -> Outcome:
    """Fork `rounds` children of this process, in which threads run operations."""
    from cuda_async import Device, DeviceOp, value, zip
    from tests.cuda_async.work import Affine, Read, words

    outcome, chance, over = Outcome(), random.Random(seed), threading.Event()
    host = Device.host()

    def operations(number: int) -> None:
        stream, other = host.new_stream(), host.new_stream()
        storage = words(number, count=300).sync_on(stream)
        for step in range(5):
            Affine(storage, 3, step).sync_on(other if step % 2 else stream)
            number = (3 * number + step) % 2**32
        op: DeviceOp[Any] = zip(Affine(storage, 1, 0).then(Read), value(1)).first()
        if set(op.sync_on(stream).tolist()) != {number}:
            raise AssertionError("wrong words")

    def load(number: int) -> None:
        while not over.is_set():
            operations(number)

    def in_child(ready: int) -> None:
        status = 1
        try:
            for number in range(3):
                operations(number)
            status = 0
        except BaseException:
            os.write(ready, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        for number in range(rounds):
            time.sleep(chance.uniform(0, 0.005))
            reading, writing = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads
                child = os.fork()
            if child == 0:
                in_child(writing)
            os.close(writing)
            said = b""
            if select.select([reading], [], [], _LIMIT_S)[0]:  # its end closes the pipe
                said = os.read(reading, 4000)
            else:
                said = b"it hangs"
                os.kill(child, signal.SIGKILL)
            os.close(reading)
            status = os.waitpid(child, 0)[1]
            outcome.rounds += 1
            if status != 0 or said:
                outcome.failures.append(f"seed {seed}, fork {number}: status {status}, {said.decode()}")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return outcome


PART = Part("forks", "a child forked while threads submit runs operations of its own", 300, 15, run)
