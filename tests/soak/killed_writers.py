"""Processes that write and read the disk cache are killed at random moments; what others read is right.

Each round starts some processes on one folder. Each writes, reads and checks entries of all sizes in a hurry, damages
some on its way, and removes others; all but one are killed after a random time. That one has to end by itself, with
nothing wrong. Then a fresh process's view is checked: every entry that is there is whole and the one that was written,
nothing is left of those who were killed, and each entry can be written again.

Processes are forked from one that has imported the cache and has no threads, so that a round takes a tenth of a
second: `python -m tests.soak.killed_writers ROUNDS SEED` is that one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, replace
from pathlib import Path

from cutile.backend.interface import Executable
from cutile.compile.store import FILES, DiskStore
from tests.compile.entries import EXECUTABLE
from tests.soak.part import Outcome, Part

KEYS = tuple(f"{number:02x}" + "7" * 62 for number in range(6))
LARGEST = 400_000
"""Bytes of the largest image: writing it takes long enough to be killed in."""
PROCESSES = 4
LONGEST_S = 0.03
"""Seconds after which the last of those that are killed is."""


def executable(key: str) -> Executable:
    """What belongs to a key, and to no other."""
    size = LARGEST * (1 + KEYS.index(key)) // len(KEYS)
    return replace(EXECUTABLE, image=key.encode() * (size // len(key)), log=key)


def work(folder: Path, seed: int, limit_s: float) -> None:
    """Write, read, damage and remove entries for so long, or until this process is killed.

    Raises:
        AssertionError: an entry was read that nobody wrote.
    """
    drawn = random.Random(seed)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        store = DiskStore(folder, capacity=drawn.choice([2 * LARGEST, 10 * LARGEST]))
        key = drawn.choice(KEYS)
        found = store.get(key)
        assert found is None or found == executable(key), f"{key[:2]}: read what nobody wrote"
        if found is None or drawn.random() < 0.3:
            store.put(key, executable(key))
        elif drawn.random() < 0.3:
            damage(folder / "v2" / key[:2] / key, drawn)


def damage(entry: Path, drawn: random.Random) -> None:
    """Take a file away, or cut it short."""
    file = entry / drawn.choice(FILES)
    try:
        if drawn.random() < 0.5:
            file.unlink()
        else:
            os.truncate(file, drawn.randrange(100))
    except OSError:
        pass  # another one has moved it away


def start(folder: Path, seed: int, limit_s: float) -> int:
    """A process that works; its exit status is 1 where something was wrong."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        warnings.simplefilter("error")
        work(folder, seed, limit_s)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def check(folder: Path, pid: int) -> list[str]:
    """What is wrong with a cache that nobody writes."""
    wrong = [] if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else ["the one that was not killed failed"]
    store = DiskStore(folder, capacity=100 * LARGEST)
    for key in KEYS:
        entry = store.get(key)
        if entry is not None and entry != executable(key):
            wrong.append(f"{key[:2]} is what nobody wrote")
        if entry is None:
            store.put(key, executable(key))
            if store.get(key) != executable(key):
                wrong.append(f"{key[:2]} cannot be written again")
    there = {path.relative_to(folder / "v2").as_posix() for path in (folder / "v2").rglob("*")}
    wanted = {"new", *(key[:2] for key in KEYS), *(f"{key[:2]}/{key}" for key in KEYS)}
    wanted |= {f"{key[:2]}/{key}/{name}" for key in KEYS for name in FILES}
    wrong += [f"left over: {name}" for name in sorted(there - wanted)]
    return wrong


def run(rounds: int, seed: int) -> Outcome:
    """Kill writers of one folder in each round; the folder stays from round to round."""
    command = [sys.executable, "-m", "tests.soak.killed_writers", str(rounds), str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=500 + 2 * rounds)
    return Outcome(**json.loads(done.stdout))


def kill_in_rounds(rounds: int, seed: int) -> Outcome:
    """What `run` does, by a process that has nothing else to do."""
    outcome = Outcome(notes={"killed while writing": 0})
    folder = Path(tempfile.mkdtemp(prefix="cutile-killed-"))
    try:
        for number in range(rounds):
            drawn = random.Random(seed + number)
            survivor = start(folder, drawn.getrandbits(32), LONGEST_S)
            killed = [start(folder, drawn.getrandbits(32), 60) for _ in range(PROCESSES - 1)]
            for pid in killed:
                time.sleep(drawn.random() * LONGEST_S / len(killed))
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            left = folder / "v2" / "new"
            names = os.listdir(left) if left.is_dir() else []
            outcome.notes["killed while writing"] += any(f"-{pid}-" in name for pid in killed for name in names)
            wrong = check(folder, survivor)
            outcome.rounds += 1
            if wrong:
                outcome.failures.append(f"--rounds 1 --seed {seed + number}: {'; '.join(wrong)}")
        if rounds >= PART.rounds and outcome.notes["killed while writing"] < rounds / 20:
            outcome.failures.append(f"{outcome.notes} of {rounds} rounds: too few to say anything")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


PART = Part(
    name="killed-writers",
    meaning="kill processes that write the disk cache, and read it",
    rounds=200,
    short=20,
    run=run,
)

if __name__ == "__main__":
    print(json.dumps(asdict(kill_in_rounds(int(sys.argv[1]), int(sys.argv[2])))))
