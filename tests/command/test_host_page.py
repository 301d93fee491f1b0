"""`python -m cutile host`, and its page: every public name of the host is there, and shows how it is used."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import cuda_async
import cutile
from cutile import api, language
from cutile.command import host, main
from cutile.command.host import HostEntry, entries, page, rest, sections
from cutile.command.ops import FIRST_HOUR, anchors
from cutile.dtypes import DType
from tests.support.golden import Golden

ROOT = Path(__file__).parents[2]
ENTRIES = [entry for group in entries() for entry in group.entries]

ELSEWHERE = {"DType", "Tile", "api", "MutBorrow", "Writable"}
"""Names that the page has no entry for: what kernels say, a module, and what `Tensor.mut` and `memcpy` speak of."""

NO_EXAMPLE = {
    # they need a GPU
    "load_module_from_cuda_src", "load_module_from_ptx_src", "load_module_from_file", "load_module_from_bytes",
    "Module", "Function",
    # they are what other entries, which have examples, yield or take
    "KernelOp", "Kernel", "Composite", "Launches",
    "FutureState", "api.DeviceVec", "api.DevicePointer", "Instrument", "ObservedOperation",
    "remove_instrument", "CompletionStatistics", "PoolStatistics", "load_verified",
    # they are for who writes operations: `Storage` and `ExecutionContext` have examples
    "Lease", "register_internal_package",
}  # fmt: skip


def test_the_page_is_what_the_docstrings_say(pytestconfig: pytest.Config) -> None:
    golden = Golden(ROOT / "docs" / "reference", bool(pytestconfig.getoption("--update-golden")))
    golden("host.md", page())


def test_every_public_name_is_on_the_page() -> None:
    shown = {entry.name for entry in ENTRIES} | {entry.name for group in entries() for entry in rest(group)}
    last = {name.removeprefix("api.") for name in shown}
    of_host = [name for name in cutile.__all__ if name not in language.__all__]
    missing = [name for name in host.torch_names() if f"ctt.{name}" not in shown | {"ctt.Partition"}]
    missing += [
        name
        for place, names in ((cutile, of_host), (cuda_async, cuda_async.__all__), (api, api.__all__))
        for name in names
        if name not in last | ELSEWHERE and not _listed_elsewhere(getattr(place, name))
    ]
    assert missing == []


def _listed_elsewhere(member: object) -> bool:
    """Errors have a table of their own, element types a page."""
    return inspect.isclass(member) and issubclass(member, BaseException | DType)


def test_what_is_read_without_pytorch_is_what_pytorch_users_see() -> None:
    ctt = pytest.importorskip("cutile.torch", reason="needs PyTorch")
    assert set(host.torch_names()) == set(ctt.__all__)
    for name in ctt.__all__:
        read, real = host.torch_member(name), getattr(ctt, name)
        assert (inspect.getdoc(read), str(inspect.signature(read))) == (
            inspect.getdoc(real),
            str(inspect.signature(real)),
        )


def test_no_name_is_there_twice() -> None:
    names = [entry.name for entry in ENTRIES]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_says_what_it_is_and_shows_it(entry: HostEntry) -> None:
    """Examples run: tests/docs/test_docstrings.py."""
    assert 0 < len(entry.line) <= 200
    assert (">>>" in entry.documentation) != (entry.name in NO_EXAMPLE)


@pytest.mark.parametrize("name", ["host.md", "language.md"])
def test_links_within_a_page_lead_to_its_headings(name: str) -> None:
    text = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    headings = re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    linked = re.findall(r"\]\(#([^)]*)\)", text)
    assert len(linked) > 15
    assert set(linked) - set(anchors(headings)) == set()


def test_equal_headings_are_told_apart() -> None:
    assert anchors(["`x * y`", "`x < y`", "`exp(x: Tile) -> Tile`"]) == ["x--y", "x--y-1", "expx-tile---tile"]


def test_the_first_hour_has_thirty_entries() -> None:
    names = [name for group in FIRST_HOUR.values() for name in group]
    assert (len(names), len(set(names))) == (30, 30)


def test_the_list_and_one_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host"]) == 0
    text = capsys.readouterr().out
    assert "Make a tensor\n\n    api.empty(shape" in text
    assert main(["host", "Tensor.partition"]) == 0
    assert capsys.readouterr().out.startswith("Tensor.partition(shape: TileLike) -> Partition\n\n    Cut the tensor")
    assert main(["host", "num_bytes"]) == 0
    assert "Tensor.num_bytes\n" in capsys.readouterr().out
    assert main(["host", "api.zeroes"]) == 1
    assert "the host has no 'api.zeroes'; did you mean 'api.zeros'?" in capsys.readouterr().err


def test_sections_of_a_docstring() -> None:
    text = "First.\n\nMore.\n\nArgs:\n    a: one\n        and on.\n\nProse behind.\n\nExample:\n    >>> 1\n    1"
    assert list(sections(text)) == [
        ("", "First.\n\nMore."),
        ("Args", "a: one\n    and on."),
        ("", "Prose behind."),
        ("Example", ">>> 1\n1"),
    ]
