"""The disk cache: whole entries or none, soft failures, the oldest out first; the key covers what matters."""

import os
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cuda_async import ReentrancyError
from cutile.backend.interface import CompileOptions, Target
from cutile.compile.kernels import SingleFlight
from cutile.compile.key import cache_key
from cutile.compile.store import CacheWarning, DiskStore
from tests.compile.entries import EXECUTABLE, KEY
from tests.support.programs import mut, program, scalar, tensor


def test_what_is_put_is_got(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    assert store.get(KEY) is None
    store.put(KEY, EXECUTABLE)
    assert store.get(KEY) == EXECUTABLE
    assert DiskStore(tmp_path).get(KEY) == EXECUTABLE
    store.put(KEY, EXECUTABLE)  # a second process with the same content
    (entry,) = store.entries()
    assert sorted(each.name for each in entry.iterdir()) == ["image", "meta.json", "source.py"]


def test_an_unwritable_folder_warns_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    store = DiskStore(blocked)
    with pytest.warns(CacheWarning, match="CUTILE_CACHE_DIR"):
        store.put(KEY, EXECUTABLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(KEY, EXECUTABLE)
    assert store.get(KEY) is None


def test_the_entries_read_longest_ago_go_first(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, capacity=2500)
    keys = [f"{each:02x}" + "1" * 62 for each in range(3)]
    big = replace(EXECUTABLE, image=b"x" * 800)
    for position, key in enumerate(keys):
        DiskStore(tmp_path, capacity=10**9).put(key, big)
        os.utime(tmp_path / "v2" / key[:2] / key, (position, position))
    store.put("ff" + "2" * 62, big)
    assert store.get(keys[0]) is None
    assert store.get("ff" + "2" * 62) is not None


def test_each_part_of_the_key_counts() -> None:
    text = "def saxpy(y: Mut, a: f32, x: Tensor):\n    y.store(a * ct.load_tile_like(x, y) + y.load())\n"
    types = {"y": mut(256), "a": scalar(), "x": tensor(1)}
    function = program(text, types)
    base = (function, CompileOptions(), Target("cpu", "native", 2), "1")
    other_program = program(text.replace("a *", "2.0 * a *"), types)
    other_layout = program(text, {**types, "x": tensor(1, alignment=4)})
    quoted = program(text.replace("\n    y.store", "\n\n    y.store"), types)
    quoted.file = function.file
    odd_path = program(text, types)
    odd_path.file = "/tmp/\udcff.py"  # a byte that is no UTF-8, as `os.fsdecode` gives it
    variants = [
        base,
        (odd_path, *base[1:]),
        (other_program, *base[1:]),
        (other_layout, *base[1:]),
        (quoted, *base[1:]),
        (function, CompileOptions(occupancy=2), *base[2:]),
        (function, base[1], Target("cpu", "native", 4), "1"),
        (function, base[1], Target("cuda", "native", 2), "1"),
        (*base[:3], "2"),
    ]
    keys = [cache_key(*variant) for variant in variants]
    assert len(set(keys)) == len(keys)
    assert cache_key(*base) == keys[0]


def test_threads_that_ask_at_once_compile_once() -> None:
    flight: SingleFlight[int] = SingleFlight()
    calls: list[int] = []
    entered, leave = threading.Event(), threading.Event()

    def make() -> int:
        calls.append(1)
        entered.set()
        assert leave.wait(10)
        return 42

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(flight.get("key", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(10)
    leave.set()
    for thread in threads:
        thread.join(10)
    assert results == [42] * 4
    assert len(calls) == 1


def test_a_thread_does_not_wait_for_itself() -> None:
    """A signal's handler may launch the kernel that its thread compiles."""
    flight: SingleFlight[int] = SingleFlight()

    def make() -> int:
        with pytest.raises(ReentrancyError, match="amid its own compilation"):
            flight.get("key", lambda: 7)
        return 42

    assert flight.get("key", make) == 42
    assert flight.get("key", lambda: 7) == 42


def test_a_failure_is_not_kept() -> None:
    flight: SingleFlight[int] = SingleFlight()

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        flight.get("key", fail)
    assert flight.get("key", lambda: 7) == 7


def test_options_are_checked() -> None:
    bad: list[dict[str, Any]] = [
        {"occupancy": 0}, {"occupancy": True}, {"max_divisibility": 3}, {"max_divisibility": True},
        {"num_worker_warps": -1}, {"limit_waits": 1}, {"streaming_stores": 0}, {"streaming_stores": "off"},
    ]  # fmt: skip
    for each in bad:
        with pytest.raises(ValueError, match="expected"):
            CompileOptions(**each)
