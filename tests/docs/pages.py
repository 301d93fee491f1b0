"""What a reference page claims, as data: the rows of its tables, the names and the tests that they mention."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
"""What stands between as many backticks at its end as at its beginning."""
_NAME = re.compile(r"(?:cutile|cuda_async)(?:\.\w+)+$")
_PATH = re.compile(r"(?:cutile|cuda_async|kernels|benchmarks|tests|docs)/[\w./]*(?:::\w+)?$")
_TEST = re.compile(r"\btests/[\w/]+\.py(?:::\w+)?")
"""Where a test is named, quoted or not: a quotation that is not seen is found by it."""


@dataclass(frozen=True)
class Row:
    """One row of a table: the line of the page, the section's title, the cells."""

    line: int
    section: str
    cells: tuple[str, ...]


def _cells(line: str) -> tuple[str, ...]:
    cells = line.strip().strip("|").replace("\\|", "\0").split("|")
    return tuple(cell.strip().replace("\0", "|") for cell in cells)


def rows(page: Path) -> list[Row]:
    """The rows of every table of a page, without the headings."""
    table: list[Row] = []
    section = ""
    heading = True
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            heading = True
            continue
        cells = _cells(line)
        if set("".join(cells)) <= set("-: "):
            heading = False
        elif not heading:
            table.append(Row(number, section, cells))
    return table


def texts(page: Path) -> Iterator[tuple[int, str]]:
    """The first line and the text of each paragraph outside of code blocks, and of each cell of a table by itself.

    A quotation may go on in a paragraph's next line, and never leaves a cell.
    """
    inside = False
    begun, lines = 0, list[str]()
    for number, line in enumerate([*page.read_text(encoding="utf-8").splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        inside = inside != fence
        plain = not (inside or fence or line.startswith(("|", "    ")) or not line.strip())
        if plain:
            begun = begun if lines else number
            lines.append(line)
            continue
        if lines:
            yield begun, " ".join(lines)
            lines = []
        if line.startswith("|") and not inside:
            yield from ((number, cell) for cell in _cells(line))


def quoted(text: str) -> list[str]:
    """What is quoted as code in a text."""
    return [span.strip() for _, span in _SPAN.findall(text)]


def names(text: str) -> list[str]:
    """The qualified names of `cutile` and `cuda_async` that are quoted in a text, calls included."""
    return [each for each in (span.partition("(")[0] for span in quoted(text)) if _NAME.match(each)]


def cited(text: str) -> list[str]:
    """The tests that are quoted in a text, as `path::name`, or a path."""
    return [each for each in quoted(text) if each.startswith("tests/")]


def resolve(name: str) -> Any:
    """The object of a qualified name. Raises AttributeError or ImportError where there is none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name == "torch":  # which the tests do not install; what the part for it offers is in its text
                return _offered(parts)
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def _offered(parts: list[str]) -> Path:
    """The file of a package that cannot be imported here. Raises AttributeError where it does not offer a name."""
    length = max(each for each in range(1, len(parts) + 1) if ROOT.joinpath(*parts[:each]).is_dir())
    file = ROOT.joinpath(*parts[:length], "__init__.py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    listed = [each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)]
    if any(name not in listed for name in parts[length:]):
        raise AttributeError(f"{file} does not offer {parts[-1]}")
    return file


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def wrong(page: Path) -> list[str]:
    """What a page claims and is not so: names that nothing has, files and tests that do not exist, open quotations."""
    faults: list[str] = []
    for line, text in texts(page):
        where = f"{page.name}:{line}"
        if "`" in _SPAN.sub("", text):
            faults.append(f"{where}: a backtick has no other one")
        faults += [f"{where}: {each} is not quoted" for each in _TEST.findall(_SPAN.sub("", text))]
        for name in names(text):
            try:
                resolve(name)
            except (AttributeError, ImportError):
                faults.append(f"{where}: there is no {name}")
        for span in quoted(text):
            if _PATH.match(span):
                faults += [f"{where}: {what}" for what in _missing(span)]
    return list(dict.fromkeys(faults))


def _missing(place: str) -> Iterator[str]:
    """What there is not of a file, a folder or a test."""
    file, _, function = place.partition("::")
    path = ROOT / file
    if not path.exists():
        yield f"there is no {file}"
    elif function and function not in _functions(path):
        yield f"{file} has no {function}"
