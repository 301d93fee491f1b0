"""The digest of cutile's sources: kept between processes, and never taken for that of other sources."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from cutile.compile import key
from cutile.compile.key import own_digest, source_digest
from cutile.compile.store import DiskStore
from cutile.installation import installed_version


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The sources of a package."""
    package = tmp_path / "package"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (package / "sub" / "module.py").write_text("y = 2\n")
    return package


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "cache")


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files that were written a moment ago count as unchanged for long."""
    monkeypatch.setattr(key, "SETTLED_NS", -(10**10))


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: Path) -> NoReturn:
        raise AssertionError("the sources were read")

    monkeypatch.setattr(key, "_digest", refuse)


@pytest.mark.usefixtures("settled")
def test_sources_that_have_not_changed_are_not_read(
    root: Path, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = source_digest(root, store)
    assert digest == source_digest(root, None)
    forbid_reading(monkeypatch)
    assert source_digest(root, DiskStore(store.base)) == digest


def edit_in_place(root: Path) -> None:
    """As long as before, and with the time that it had."""
    path = root / "sub" / "module.py"
    status = path.stat()
    path.write_text("y = 3\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def add(root: Path) -> None:
    (root / "sub" / "more.py").write_text("")


def remove(root: Path) -> None:
    (root / "sub" / "module.py").unlink()


def move(root: Path) -> None:
    (root / "sub" / "module.py").rename(root / "module.py")


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", [edit_in_place, add, remove, move], ids=lambda change: change.__name__)
def test_changed_sources_have_another_digest(root: Path, store: DiskStore, change: object) -> None:
    before = source_digest(root, store)
    assert callable(change)
    change(root)
    assert source_digest(root, store) == source_digest(root, None) != before
    (root / "notes.txt").write_text("no source")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "odd.py").write_text("no source either")
    assert source_digest(root, store) == source_digest(root, None)


def test_sources_that_changed_a_moment_ago_are_read_again(root: Path, store: DiskStore) -> None:
    source_digest(root, store)
    assert [*store.folder.glob("sources-*")] == []
    for path in root.rglob("*.py"):  # what counts is the time of the inode, which nobody can set back
        os.utime(path, ns=(0, 0))
    source_digest(root, store)
    assert [*store.folder.glob("sources-*")] == []


@pytest.mark.usefixtures("settled")
def test_a_file_that_changes_while_it_is_read_is_not_relied_on(
    root: Path, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = key._digest  # pyright: ignore[reportPrivateUsage]

    def read_and_edit(root: Path) -> str:
        digest = read(root)
        edit_in_place(root)
        return digest

    monkeypatch.setattr(key, "_digest", read_and_edit)
    source_digest(root, store)
    assert [*store.folder.glob("sources-*")] == []


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("text", ["", "no note", f"{'0' * 64}\n{'1' * 64}\n", f"{'0' * 64}\n", "\0\xff" * 65])
def test_a_note_of_anything_else_is_replaced(root: Path, store: DiskStore, text: str) -> None:
    digest = source_digest(root, store)
    (note,) = store.folder.glob("sources-*")
    sound = note.read_text()
    note.write_text(text)
    assert source_digest(root, store) == digest
    assert note.read_text() == sound


@pytest.mark.usefixtures("settled")
def test_a_note_that_others_can_write_is_not_believed(root: Path, store: DiskStore) -> None:
    digest = source_digest(root, store)
    (note,) = store.folder.glob("sources-*")
    note.write_text(note.read_text()[:65] + f"{'1' * 64}\n")
    assert source_digest(root, store) == "1" * 64  # the note of whom we trust
    note.chmod(0o666)
    assert source_digest(root, store) == digest
    store.folder.chmod(0o777)
    assert store.recall(note.name) == ""


@pytest.mark.usefixtures("settled")
def test_processes_that_write_at_once_leave_one_whole_note(root: Path, store: DiskStore) -> None:
    digest, notes = source_digest(root, store), [f"{digit * 64}\n{digit * 64}\n" for digit in "abcd"]
    (path,) = store.folder.glob("sources-*")
    seen: set[str] = set()

    def write(note: str) -> None:
        for _ in range(50):
            DiskStore(store.base).remember(path.name, note)
            seen.add(store.recall(path.name))

    threads = [threading.Thread(target=write, args=[note]) for note in notes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen <= {*notes}
    assert [*(store.folder / "new").iterdir()] == []
    assert source_digest(root, store) == digest


def test_a_folder_that_cannot_be_made_is_done_without(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert source_digest(root, DiskStore(tmp_path / "file" / "cache")) == source_digest(root, None)


def test_our_own_sources_have_one() -> None:
    assert own_digest() == source_digest(Path(key.__file__).parents[1], None)


def folder(path: Path, *names: str) -> str:
    for name in names:
        (path / name).mkdir(parents=True)
    return str(path)


def test_versions_are_those_of_the_folders_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folder(tmp_path / "first", "some_package-1.2.dist-info", "some-3.dist-info")
    second = folder(tmp_path / "second", "Some.Package-9.dist-info", "other_one-4.0+cu12.dist-info")
    monkeypatch.setattr("sys.path", [str(tmp_path / "missing.zip"), first, second])
    assert installed_version("some-package") == "1.2"
    assert installed_version("some") == "3"
    assert installed_version("other-one") == "4.0+cu12"
    assert installed_version("package") is None


def test_versions_agree_with_importlib(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import version

    names = ("numpy", "numba", "llvmlite", "ml-dtypes", "numba-cuda")
    expected = [version(name) for name in names]
    assert [installed_version(name) for name in names] == expected
    monkeypatch.setattr("cutile.installation._FOLDER", __import__("re").compile("(.)(.)never"))
    assert [installed_version(name) for name in names] == expected  # by importlib, where no folder says it
