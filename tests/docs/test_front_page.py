"""The README's picture and the pages of tables show the kept figures and no others."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

from benchmarks.front_page import FOLDER, loops_page, memory_page, picture

SHOWN = re.compile(r">(\d+\.\d\d)\D")


def test_the_picture_is_what_the_figures_say() -> None:
    assert (FOLDER / "speed.svg").read_text(encoding="utf-8") == picture(), "python -m benchmarks.front_page"


def test_the_page_of_kernels_that_move_bytes_is_what_the_figures_say() -> None:
    assert (FOLDER / "memory" / "figures.md").read_text(encoding="utf-8") == memory_page()


def test_the_page_of_loops_is_what_the_figures_say() -> None:
    assert (FOLDER / "loops" / "README.md").read_text(encoding="utf-8") == loops_page()


def test_another_figure_is_another_picture(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    shutil.copytree(FOLDER, folder)
    path = folder / "memory" / "nvidia_h200.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    row = next(row for row in record["rows"] if row["name"] == "softmax 4096")
    row["peers"]["torch.compile"]["ratio"]["median"] = 0.77
    path.write_text(json.dumps(record), encoding="utf-8")
    before, after = SHOWN.findall(picture()), SHOWN.findall(picture(folder))
    assert [(old, new) for old, new in zip(before, after, strict=True) if old != new] == [("2.37", "0.77")]


def test_no_words_leave_the_picture() -> None:
    """Words are at most seven pixels a letter wide: 12 pixels high, without serifs."""
    root = ET.fromstring(picture())
    width = float(root.attrib["width"])
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        words = text.text or ""
        assert float(text.attrib["x"]) + 6.3 * len(words) < width + 4, words
