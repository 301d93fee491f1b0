"""Dumps: what `CUTILE_DUMP` asks for, printed to stderr or written into files.

One place for every stage.
"""

from __future__ import annotations

import sys

from cutile.config import Config
from cutile.ir.core import Function
from cutile.ir.text import print_function

_SUFFIX = {"source": "py", "log": "txt"}


class Dump:
    """The stages of one compilation, as far as the settings ask for them."""

    def __init__(self, settings: Config, kernel: str) -> None:
        self._settings = settings
        self._kernel = kernel

    def wants(self, stage: str) -> bool:
        """Whether a stage is asked for."""
        return stage in self._settings.dump

    def ir(self, stage: str, function: Function) -> None:
        """Show a function."""
        if self.wants(stage):
            self.text(stage, print_function(function))

    def text(self, stage: str, text: str) -> None:
        """Show a text."""
        if not self.wants(stage):
            return
        folder = self._settings.dump_directory
        if folder is None:
            print(f"--- {self._kernel}: {stage}\n{text}", file=sys.stderr)
            return
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self._kernel}.{stage}.{_SUFFIX.get(stage, 'ir')}").write_text(text)
