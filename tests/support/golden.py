"""Golden text: what a stage printed last time, kept as a file and compared exactly.

A test calls ``golden("emit_cpu/saxpy.py", text)``; the file is ``tests/golden/emit_cpu/saxpy.py``.
``pytest --update-golden`` writes the files instead of comparing; the difference is read in review.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path


class GoldenMismatchError(AssertionError):
    """The text differs from the golden file, or there is no such file yet."""


@dataclass(frozen=True)
class Golden:
    """Compare a text with the file of that name under ``root``, or write it when ``update`` is set.

    Errors: :class:`GoldenMismatchError` with a unified diff, or with the flag that creates the file.
    """

    root: Path
    update: bool

    def __call__(self, name: str, text: str) -> None:
        path = self.root / (name if Path(name).suffix else f"{name}.txt")
        text = text if text.endswith("\n") else text + "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            raise GoldenMismatchError(f"there is no golden file {path}; pytest --update-golden writes it")
        expected = path.read_text(encoding="utf-8")
        if expected != text:
            before, after = expected.splitlines(), text.splitlines()
            diff = difflib.unified_diff(before, after, str(path), "now", lineterm="")
            raise GoldenMismatchError("\n".join(["text changed; if that is meant, run pytest --update-golden", *diff]))
