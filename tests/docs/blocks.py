"""The Python code blocks of a Markdown file. Blocks of one file are one program, in order.

A block fenced as ``python needs=torch`` or ``python needs=torch,gpu`` is for where these are. It may use names of the
blocks above it that need nothing else.
"""

import importlib.util
import linecache
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
_FENCE = re.compile(r"^```python(?:[ \t]+needs=([\w.,]+))?[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block: its text, the line of the file that its first line stands on, and what it needs beside us."""

    line: int
    text: str
    needs: frozenset[str] = frozenset()


def blocks(path: Path) -> list[Block]:
    """Return the blocks fenced as ``python``; ``pycon``, ``py`` and ``text`` are not programs."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            text.count("\n", 0, match.start(2)) + 1,
            match.group(2),
            frozenset((match.group(1) or "").split(",")) - {""},
        )
        for match in _FENCE.finditer(text)
    ]


def programs(path: Path) -> list[frozenset[str]]:
    """What the programs of a file need: one needs nothing, and there is one for each other set of needs."""
    return sorted({block.needs for block in blocks(path)}, key=sorted)


def program(path: Path, needs: frozenset[str] = frozenset()) -> str:
    """Return the blocks that need no more than `needs` as one program whose line numbers are those of the file."""
    lines = [""] * (path.read_text(encoding="utf-8").count("\n") + 1)
    for block in blocks(path):
        if block.needs <= needs:
            for offset, line in enumerate(block.text.splitlines()):
                lines[block.line - 1 + offset] = line
    return "\n".join(lines).rstrip() + "\n"


def lacking(needs: frozenset[str]) -> str:
    """Why blocks that need these cannot run here, "" where they can. Whether there is a GPU, the marker says."""
    absent = [name for name in sorted(needs - {"gpu"}) if not _installed(name)]
    return f"not installed: {', '.join(absent)}" if absent else ""


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def run(path: Path, needs: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Execute a program of the file, its source visible to the compiler as a notebook cell's is; return its names."""
    text = program(path, needs)
    name = f"<{path.name}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": f"docs_{path.stem}"}
    exec(compile(text, name, "exec"), names)
    return names
