"""Part of the soak: Ctrl-C at random times, sent by another process.

A child runs short operations, awaits and graph launches for ever. After each interrupt it says whether everything is
free and usable; one that is silent for half a minute hangs. What asyncio prints of tasks that an interrupt ended is not
looked at.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from tests.soak.part import Outcome, Part

ROOT = Path(__file__).parents[2]
_LIMIT_S = 30


def work() -> None:
    """What the child does."""
    import asyncio
    import faulthandler
    import gc
    import warnings

    from cuda_async import Device, OwnershipError, UnrunOperationWarning, value, zip
    from cuda_async.core.lease import current_holder
    from tests.cuda_async.work import Affine, Read, words

    faulthandler.register(signal.SIGUSR1)
    warnings.simplefilter("ignore", UnrunOperationWarning)
    storage = words(1, count=64).sync_on(Device.host().new_stream())

    started = False

    async def wait() -> None:
        nonlocal started
        started = True
        await asyncio.gather(*(value(n).map(lambda n: n + 1).into_future() for n in range(3)))
        await Affine(storage, 2, 1)

    def run_wait() -> None:
        nonlocal started
        started = False
        try:
            asyncio.run(wait())
        except asyncio.CancelledError:
            # asyncio.run() installs its handler and then sets its count of interrupts to zero. An interrupt between
            # these two lines cancels the task before its first step and is not counted: nobody raises
            # KeyboardInterrupt. A task that has begun is never in this state.
            if started:
                raise
            raise KeyboardInterrupt from None

    def loop() -> None:
        while True:
            for _ in range(20):
                Affine(storage, 2, 1).sync()
            zip(Affine(storage, 1, 1), value(1)).sync()
            Affine(storage, 1, 1).then(Read).sync()
            run_wait()
            stream = Device.host().new_stream()
            with Affine(storage, 2, 1).graph_on(stream) as graph:
                graph.launch().sync_on(stream)

    def find_fault() -> str:
        if current_holder() is not None:
            return "this thread is inside a submission for ever"
        end = time.monotonic() + 500
        while True:
            try:
                Affine(storage, 0, 7).sync()
                break
            except OwnershipError as error:
                if time.monotonic() > end:
                    return f"still lent: {error}"
                gc.collect()
        words_ = set(Read(storage).sync().tolist())
        return "" if words_ == {7} else f"wrong words: {words_}"

    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio.run() puts its own in this one's place only
    with Device.host():
        while True:
            try:
                print("ready", flush=True)
                loop()
            except KeyboardInterrupt:
                pass
            print(find_fault() or "fine", flush=True)


class _Child:
    def __init__(self) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.soak.interrupts import work; work()"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=self._complaints, bufsize=0,
        )  # fmt: skip
        self._said = b""

    def line(self, limit_s: float = _LIMIT_S) -> str:
        """What it says next; empty where it is silent for too long, or has ended."""
        stdout = cast("Any", self._process.stdout)
        while b"\n" not in self._said:
            if not select.select([stdout], [], [], limit_s)[0]:
                return ""
            piece = os.read(stdout.fileno(), 4096)
            if not piece:
                return ""
            self._said += piece
        line, _, self._said = self._said.partition(b"\n")
        return line.decode().strip()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> str:
        """End it; where it was, and what it said."""
        self._process.send_signal(signal.SIGUSR1)  # its threads' frames
        time.sleep(0.1)
        self._process.kill()
        status = self._process.wait()
        cast("Any", self._process.stdout).close()
        self._complaints.seek(0)
        said = self._complaints.read()[-4000:].decode()
        self._complaints.close()
        return f"{said} (status {status})"


def run(rounds: int, seed: int) -> Outcome:
    """Interrupt a child `rounds` times; one that is not fine is replaced."""
    outcome, chance = Outcome(), random.Random(seed)
    child = _Child()
    try:
        for number in range(rounds):
            answer = child.line()
            if answer == "ready":
                time.sleep(chance.uniform(0, 0.03))
                for _ in range(_LIMIT_S // 3):  # Python drops what is raised in a finalizer: once more, then
                    child.interrupt()
                    answer = child.line(3)
                    if answer:
                        break
            outcome.rounds += 1
            if answer != "fine":
                outcome.failures.append(f"seed {seed}, interrupt {number}: {answer or 'silent'}; {child.end()}")
                child = _Child()
    finally:
        child.end()
    return outcome


PART = Part("interrupts", "Ctrl-C at a random time, then everything is free and usable", 1000, 40, run)
