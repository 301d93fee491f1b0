"""The disk cache is used where only its user and root can write; what others may have written is never run."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cutile.compile import folders
from cutile.compile.store import CacheWarning, DiskStore
from tests.compile.entries import EXECUTABLE, KEY

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have no modes here")

NOBODY, NOBODYS_GROUP = 65534, 60001
as_root = pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with an entry, a folder below the test's own."""
    base = tmp_path / "cache"
    DiskStore(base).put(KEY, EXECUTABLE)
    return base


def is_refused(base: Path, match: str) -> None:
    """Nothing is read, nothing written, and each process says so once."""
    store = DiskStore(base)
    files = sorted(base.rglob("*"))
    with pytest.warns(CacheWarning, match=match):
        assert store.get(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get(KEY) is None
        store.put("cd" + KEY[2:], EXECUTABLE)
    with pytest.warns(CacheWarning, match=match):
        DiskStore(base).put("cd" + KEY[2:], EXECUTABLE)
    assert sorted(base.rglob("*")) == files


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_made_is_its_users_alone(tmp_path: Path, mask: int) -> None:
    os.umask(mask)
    store = DiskStore(tmp_path / "not" / "there")
    store.put(KEY, EXECUTABLE)
    assert store.get(KEY) == EXECUTABLE
    made = [tmp_path / "not", *(tmp_path / "not").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}


@pytest.mark.parametrize(
    ("inside", "mode", "who"),
    [
        ("", 0o777, "others"),
        ("", 0o702, "others"),
        ("", 0o770, "its group"),
        ("..", 0o777, "others"),
        ("v2", 0o777, "others"),
        ("v2", 0o1777, "others"),
        ("v2", 0o720, "its group"),
    ],
)
def test_a_folder_that_others_may_write_is_not_used(base: Path, inside: str, mode: int, who: str) -> None:
    (base / inside).chmod(mode)
    is_refused(base, rf"may be written by {who}.* \(mode {mode:04o}\); `chmod go-w` it, or set CUTILE_CACHE_DIR")
    (base / inside).chmod(mode & ~0o022)
    assert DiskStore(base).get(KEY) == EXECUTABLE


@pytest.mark.parametrize("inside", ["", ".."])
def test_a_folder_of_many_in_which_each_owns_his_files_will_do(base: Path, inside: str) -> None:
    """As `/tmp`: with the sticky bit nobody but its owner puts another folder in the place of one."""
    (base / inside).chmod(0o1777)
    assert DiskStore(base).get(KEY) == EXECUTABLE


@as_root
@pytest.mark.parametrize("inside", ["", "..", "v2"])
def test_a_folder_of_another_user_is_not_used(base: Path, inside: str) -> None:
    os.chown(base / inside, 4711, -1)
    is_refused(base, r"belongs to another user \(4711\); set CUTILE_CACHE_DIR to a folder of your own")


@as_root
@pytest.mark.parametrize("inside", ["ab", f"ab/{KEY}", *(f"ab/{KEY}/{name}" for name in ("image", "meta.json"))])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_what_another_user_put_there_once_is_not_run(base: Path, inside: str, how: str) -> None:
    """Such as when the folder was open to all, and has been closed since."""
    path = base / "v2" / inside
    if how == "owner":
        os.chown(path, 4711, -1)
    else:
        path.chmod(0o777)
    assert DiskStore(base).get(KEY) is None


@as_root
def test_links_count_as_who_made_them(base: Path) -> None:
    """Who made a link in `/tmp` may make it point elsewhere, at any time."""
    shared = base.parent / "shared"
    shared.mkdir(mode=0o755)
    link = shared / "link"
    link.symlink_to(Path("..") / base.name)
    assert DiskStore(link).get(KEY) == EXECUTABLE
    assert DiskStore(shared / ".." / "shared" / "link").get(KEY) == EXECUTABLE
    os.lchown(link, 4711, -1)
    is_refused(link, r"shared/link belongs to another user \(4711\)")


@as_root
def test_what_a_link_leads_through_counts(base: Path) -> None:
    through = base.parent / "through"
    through.mkdir()
    base.rename(through / "cache")
    base.symlink_to(through / "cache")
    assert DiskStore(base).get(KEY) == EXECUTABLE
    through.chmod(0o777)
    is_refused(base, "through may be written by others")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.warns(CacheWarning, match="symbolic links"):
        DiskStore(tmp_path / "a").put(KEY, EXECUTABLE)


@as_root
def test_a_group_of_its_user_alone_may_write_above(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems whose users have groups of their own, and the mask 002. Another group may not."""
    base.parent.chmod(0o770)
    assert DiskStore(base).get(KEY) == EXECUTABLE
    os.chown(base.parent, -1, NOBODYS_GROUP)
    is_refused(base, rf"may be written by its group \({NOBODYS_GROUP}\)")
    own: Callable[[int], bool] = NOBODYS_GROUP.__eq__
    monkeypatch.setattr(folders, "_is_own_group", own)
    assert DiskStore(base).get(KEY) == EXECUTABLE


@as_root
def test_who_stands_for_all_other_users_is_root_where_only_some_are_shown(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container with users of its own, `/` is the overflow user's."""
    os.chown(base.parent, NOBODY, -1)
    monkeypatch.setattr(folders, "_unmapped", lambda: (NOBODY,))
    assert DiskStore(base).get(KEY) == EXECUTABLE
    monkeypatch.setattr(folders, "_unmapped", tuple[int])
    is_refused(base, rf"belongs to another user \({NOBODY}\)")
    monkeypatch.setattr(folders, "_unmapped", lambda: (NOBODY,))
    os.chown(base, NOBODY, -1)
    is_refused(base, rf"belongs to another user \({NOBODY}\)")
