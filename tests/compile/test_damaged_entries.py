"""What is wrong with an entry on disk is found, whatever byte it is in, and mended by whoever compiles it again."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cutile.backend.interface import Executable
from cutile.compile import store as store_module
from cutile.compile.store import FILES, DamagedEntryError, DiskStore, decode, encode
from tests.compile.entries import EXECUTABLE, KEY


def damaged(files: dict[str, bytes]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """An entry with each single bit flipped, each byte left out or doubled, and each file cut short at each place."""
    for name, data in files.items():
        for at in range(len(data)):
            for bit in range(8):
                changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
                yield f"{name}: bit {bit} of byte {at}", {**files, name: changed}
            yield f"{name}: cut at {at}", {**files, name: data[:at]}
            yield f"{name}: without byte {at}", {**files, name: data[:at] + data[at + 1 :]}
            yield f"{name}: byte {at} twice", {**files, name: data[: at + 1] + data[at:]}
        yield f"{name}: longer", {**files, name: data + b"\0"}


def test_every_damage_is_detected() -> None:
    """A flipped bit that is accepted is a kernel with another result, or with another log: none may be."""
    files = encode(KEY, EXECUTABLE)
    assert decode(KEY, files) == EXECUTABLE
    cases = 0
    for what, changed in damaged(files):
        if changed == files:  # one of two equal neighbours left out, say, and the other doubled
            continue
        cases += 1
        with pytest.raises(DamagedEntryError):
            raise AssertionError(f"accepted: {what}, {decode(KEY, changed)}")
    assert cases > 5000


def test_an_entry_is_that_of_its_key() -> None:
    with pytest.raises(DamagedEntryError, match="digest"):
        decode("cd" + KEY[2:], encode(KEY, EXECUTABLE))


def forged(change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    """An entry with other fields, and the digest that belongs to them."""
    files = encode(KEY, EXECUTABLE)
    fields = json.loads(files["meta.json"])
    del fields["digest"]
    change(fields)
    body = json.dumps(fields, indent=1).removeprefix("{\n").encode()
    digest = hashlib.sha256()
    for part in (KEY.encode(), files["image"], files["source.py"], body):
        digest.update(len(part).to_bytes(8, "little") + part)
    return {**files, "meta.json": f'{{"digest": "{digest.hexdigest()}",\n'.encode() + body}


def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Puts a value into a place of the fields."""

    def change(fields: dict[str, Any]) -> None:
        inner: Any = fields
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    return change


CODE = "0] or print('evaluated') or c[0"


@pytest.mark.parametrize(
    "change",
    [
        at("parameters", 0, 2, value=CODE),
        at("parameters", 0, 3, value=CODE),
        at("parameters", 0, 2, value=True),
        at("parameters", 0, 2, value=0.0),
        at("parameters", 0, 1, value="kind"),
        at("parameters", 0, 4, value="no dtype"),
        at("parameters", 0, 4, value=[]),
        at("parameters", 0, value=[]),
        at("parameters", 2, 5, value="map"),
        at("parameters", 2, 5, 1, value=None),
        at("parameters", 2, 5, 0, value=[64, {}]),
        at("parameters", value={}),
        at("facts", value=[]),
        at("target", value=["cpu", "test"]),
        at("target", 2, value="2"),
        at("entry", value=None),
        at("log", value=1),
    ],
)
def test_data_of_the_wrong_kind_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    assert decode(KEY, forged(lambda fields: None)) == EXECUTABLE
    with pytest.raises(DamagedEntryError, match="no entry"):
        decode(KEY, forged(change))


def lose(name: str) -> Callable[[Path], None]:
    return lambda entry: (entry / name).unlink()


def damage(name: str) -> Callable[[Path], None]:
    def change(entry: Path) -> None:
        (entry / name).write_bytes(b"{ damaged")

    return change


def empty(entry: Path) -> None:
    for each in entry.iterdir():
        each.unlink()


def a_file(entry: Path) -> None:
    empty(entry)
    entry.rmdir()
    entry.write_text("no folder")


def a_link(entry: Path) -> None:
    elsewhere = entry.parent / "elsewhere"
    entry.rename(elsewhere)
    entry.symlink_to(elsewhere)


def a_pipe(entry: Path) -> None:
    (entry / "image").unlink()
    os.mkfifo(entry / "image")  # nobody ever writes to it: reading would wait for ever


@pytest.mark.parametrize(
    "change",
    [*map(lose, FILES), *map(damage, FILES), empty, a_file, a_link, a_pipe],
    ids=[*(f"no {name}" for name in FILES), *(f"damaged {name}" for name in FILES), "empty", "file", "link", "pipe"],
)
def test_an_entry_that_cannot_be_read_is_mended(tmp_path: Path, change: Callable[[Path], None]) -> None:
    store = DiskStore(tmp_path)
    store.put(KEY, EXECUTABLE)
    (entry,) = store.entries()
    change(entry)
    assert store.get(KEY) is None
    store.put(KEY, EXECUTABLE)
    assert DiskStore(tmp_path).get(KEY) == EXECUTABLE
    assert os.listdir(tmp_path / "v2" / "new") == []


def test_a_sound_entry_stays_where_it_is(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.put(KEY, EXECUTABLE)
    (entry,) = store.entries()
    before = entry.stat().st_ino
    store.put(KEY, replace(EXECUTABLE, log="written later"))
    assert entry.stat().st_ino == before
    assert store.get(KEY) == EXECUTABLE


@pytest.mark.parametrize("step", ["rename", "open"])
def test_a_writer_survives_a_folder_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Another process may clear the cache between any two steps of a writer."""
    store = DiskStore(tmp_path)
    plain: Callable[..., Any] = getattr(os, step)
    calls: list[Any] = []

    def clear_first(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            DiskStore(tmp_path).clear()
        return plain(*arguments, **named)

    monkeypatch.setattr(os, step, clear_first)
    store.put(KEY, EXECUTABLE)
    monkeypatch.undo()
    assert len(calls) > 1
    assert store.get(KEY) == EXECUTABLE


def test_entries_that_go_while_they_are_counted_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStore(tmp_path, capacity=1)
    plain = store_module.size_of

    def gone(path: Path) -> int:
        size = plain(path)
        for each in path.iterdir():
            each.unlink()
        path.rmdir()
        return size

    monkeypatch.setattr(store_module, "size_of", gone)
    store.put(KEY, EXECUTABLE)  # warns of nothing: warnings are errors
    assert store.get(KEY) is None


def made_anew(executable: Executable) -> Executable:
    return replace(executable, image=executable.image * 2)


def test_two_that_mend_at_once_leave_one_whole_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes in the moment in which the first has moved the damaged entry away."""
    store, other = DiskStore(tmp_path), DiskStore(tmp_path)
    store.put(KEY, EXECUTABLE)
    (entry,) = store.entries()
    (entry / "image").unlink()
    plain = os.rename
    came: list[str] = []

    def rename(old: Path, new: Path) -> None:
        if Path(new) == entry and came == ["once"]:
            came.append("twice")
            other.put(KEY, made_anew(EXECUTABLE))
        elif Path(new) == entry:
            came.append("once")
        plain(old, new)

    monkeypatch.setattr(os, "rename", rename)
    store.put(KEY, EXECUTABLE)
    monkeypatch.undo()
    assert store.get(KEY) in (EXECUTABLE, made_anew(EXECUTABLE))
    assert os.listdir(tmp_path / "v2" / "new") == []
