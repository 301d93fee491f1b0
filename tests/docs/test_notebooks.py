"""Each notebook of docs/tutorials runs from top to bottom, and says what its file says; answers run, links lead on."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.notebooks import NOTEBOOKS, answers, differences, executed, read, tags, written
from tests.docs.pages import wrong

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def notebook(*cells: dict[str, Any]) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def prose(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source: str, *tags: str) -> dict[str, Any]:
    metadata = {"tags": list(tags)} if tags else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": [], "execution_count": None}


@pytest.mark.slow
@each_notebook
def test_a_notebook_says_what_its_file_says(path: Path) -> None:
    pytest.importorskip("IPython", reason="needs the extra notebook")
    now = executed(path)
    assert list(differences(read(path), now)) == [], "python -m tests.docs.notebooks writes it anew"


@pytest.mark.gpu
@pytest.mark.slow
@each_notebook
def test_a_notebook_runs_on_a_gpu(path: Path) -> None:
    """Devices and times differ; that the same cells raise, and no other, does not."""
    pytest.importorskip("IPython", reason="needs the extra notebook")
    executed(path, "cuda:0")


@each_notebook
def test_a_notebook_is_complete(path: Path) -> None:
    notebook = read(path)
    cells = notebook["cells"]
    runs = [cell for cell in cells if cell["cell_type"] == "code"]
    assert written(notebook) == path.read_text(encoding="utf-8")
    assert [cell["execution_count"] for cell in runs] == list(range(1, len(runs) + 1))
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert [cell["id"] for cell in runs if tags(cell) and not cell["outputs"]] == []
    assert any("raises-exception" in tags(cell) for cell in runs)
    assert "<svg" not in path.read_text(encoding="utf-8")  # pages take it away from a notebook that others have run
    assert sum(len(answers(cell)) for cell in cells) >= 2


@each_notebook
def test_what_a_notebook_names_exists(path: Path, tmp_path: Path) -> None:
    text = "\n\n".join(cell["source"] for cell in read(path)["cells"] if cell["cell_type"] == "markdown")
    assert [target for target in re.findall(r"\]\(([^)]+)\)", text) if not (path.parent / target).exists()] == []
    page = tmp_path / path.with_suffix(".md").name
    page.write_text(text, encoding="utf-8")
    assert wrong(page) == []


def test_a_difference_is_seen_where_text_is_compared() -> None:
    notebook = read(NOTEBOOKS[0])
    now = copy.deepcopy(notebook)
    compared = next(cell for cell in now["cells"] if cell["cell_type"] == "code" and not tags(cell) and cell["outputs"])
    free = next(cell for cell in now["cells"] if "varies" in tags(cell))
    for cell in (compared, free):
        cell["outputs"][-1]["data"]["text/plain"] = "something else"
    (difference,) = differences(notebook, now)
    assert difference.endswith("something else")


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([code("1 // 0")], "ZeroDivisionError"),
        ([code("1 // 1", "raises-exception")], "should have raised, and did not"),
        ([prose("<details>\n\n```python\nassert not 1\n```\n\n</details>")], "AssertionError"),
    ],
    ids=["raises", "does not raise", "answer"],
)
@pytest.mark.slow
def test_what_goes_wrong_in_a_notebook_is_told(tmp_path: Path, cells: list[dict[str, Any]], said: str) -> None:
    pytest.importorskip("IPython", reason="needs the extra notebook")
    path = tmp_path / "wrong.ipynb"
    path.write_text(json.dumps(notebook(*cells)))
    with pytest.raises(RuntimeError, match=said):
        executed(path)


@pytest.mark.slow
def test_outputs_are_kept_in_their_order(tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="needs the extra notebook")
    path = tmp_path / "outputs.ipynb"
    source = (
        "from IPython.display import display\nhandle = display('first', display_id=True)\nprint('second')\n"
        "handle.update('anew')\nawait __import__('asyncio').sleep(0, 'third')"
    )
    path.write_text(json.dumps(notebook(code(source), code("1 // 0", "raises-exception"))))
    shown, failed = executed(path)["cells"]
    kinds = [(output["output_type"], output.get("text") or output["data"]["text/plain"]) for output in shown["outputs"]]
    assert kinds == [("display_data", "'anew'"), ("stream", "second\n"), ("execute_result", "'third'")]
    assert (shown["execution_count"], failed["execution_count"]) == (1, 2)
    assert [output["ename"] for output in failed["outputs"]] == ["ZeroDivisionError"]
