"""docs/environment.md lists the variables that the two configuration modules read, no more and no fewer."""

import re

from tests.docs.blocks import ROOT


def test_every_variable_is_listed() -> None:
    read = {
        name
        for package in ("cutile", "cuda_async")
        for name in re.findall(
            r'"((?:CUTILE|CUDA_ASYNC)_[A-Z_]+)"', (ROOT / package / "config.py").read_text(encoding="utf-8")
        )
    }
    listed = re.findall(
        r"^\| `([A-Z_]+)` \|", (ROOT / "docs" / "environment.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(read) == sorted(listed)
