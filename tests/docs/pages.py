"""What a reference page claims, as data: the rows of its tables, the names and the tests that they mention."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

_QUOTED = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"(?:cutile|cuda_async)(?:\.\w+)+$")


@dataclass(frozen=True)
class Row:
    """One row of a table: the line of the page, the section's title, the cells."""

    line: int
    section: str
    cells: tuple[str, ...]


def rows(page: Path) -> list[Row]:
    """The rows of every table of a page, without the headings."""
    found: list[Row] = []
    section = ""
    heading = True
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            heading = True
            continue
        cells = tuple(cell.strip() for cell in line.strip("|").replace("\\|", "\0").split("|"))
        if set("".join(cells)) <= set("-: "):
            heading = False
        elif not heading:
            found.append(Row(number, section, tuple(cell.replace("\0", "|") for cell in cells)))
    return found


def names(text: str) -> list[str]:
    """The qualified names of `cutile` and `cuda_async` that are quoted in a text."""
    return [each for each in _QUOTED.findall(text) if _NAME.match(each)]


def cited(text: str) -> list[str]:
    """The tests that are quoted in a text, as `path::name`, or a path."""
    return [each for each in _QUOTED.findall(text) if each.startswith("tests/")]


def resolve(name: str) -> Any:
    """The object of a qualified name. Raises AttributeError or ImportError where there is none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def wrong(page: Path) -> list[str]:
    """What a page claims and is not so: names that nothing has, tests that do not exist."""
    found: list[str] = []
    text = page.read_text(encoding="utf-8")
    for name in dict.fromkeys(names(text)):
        try:
            resolve(name)
        except (AttributeError, ImportError):
            found.append(f"{page.name}: there is no {name}")
    for test in dict.fromkeys(cited(text)):
        where, _, function = test.partition("::")
        path = ROOT / where
        if not path.exists():
            found.append(f"{page.name}: there is no {where}")
        elif function and function not in _functions(path):
            found.append(f"{page.name}: {where} has no {function}")
    return found
