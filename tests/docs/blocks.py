"""The Python code blocks of a Markdown file. Blocks of one file are one program, in order."""

import linecache
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
_FENCE = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block: its text, and the line of the file that its first line stands on."""

    line: int
    text: str


def blocks(path: Path) -> list[Block]:
    """Return the blocks fenced as ``python``; ``pycon`` and ``text`` are not programs."""
    text = path.read_text(encoding="utf-8")
    return [Block(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in _FENCE.finditer(text)]


def program(path: Path) -> str:
    """Return all blocks as one program whose line numbers are those of the file."""
    lines = [""] * (path.read_text(encoding="utf-8").count("\n") + 1)
    for block in blocks(path):
        for offset, line in enumerate(block.text.splitlines()):
            lines[block.line - 1 + offset] = line
    return "\n".join(lines).rstrip() + "\n"


def run(path: Path) -> dict[str, Any]:
    """Execute the file's program, its source visible to the compiler as a notebook cell's is; return its names."""
    text = program(path)
    name = f"<{path.name}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": f"docs_{path.stem}"}
    exec(compile(text, name, "exec"), names)
    return names
