"""The notebooks in docs/tutorials: executed in a process of their own, as IPython does; compared, or kept.

    python -m tests.docs.notebooks              # execute all of them and keep their outputs
    python -m tests.docs.notebooks first.ipynb  # some of them

A cell tagged `raises-exception` shows a mistake and has to raise; no other may. A cell tagged `varies` shows times: its
output is kept and not compared. What stands folded away as an answer, ``<details>``, runs after the last cell.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
LIMIT_S = 500

_DETAILS = re.compile(r"<details>(.*?)</details>", re.DOTALL)
_CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}

Cell = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    """A notebook as data; sources and outputs are strings, not lists of lines."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return _map_text(notebook, _joined)


def written(notebook: dict[str, Any]) -> str:
    """The text of the file: one line of it for each line of a source, as notebook programs write it."""
    return json.dumps(_map_text(notebook, _split), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def tags(cell: Cell) -> set[str]:
    """The tags of a cell."""
    return set(cell["metadata"].get("tags", ()))


def answers(cell: Cell) -> list[str]:
    """The code that stands folded away in a cell of text."""
    return [code for fold in _DETAILS.findall(cell["source"]) for code in _CODE.findall(fold)]


def texts(cell: Cell) -> list[str]:
    """What a cell of code says, as text: streams, results and errors in their order, without colours."""
    said: list[str] = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            said.append(output["text"])
        elif output["output_type"] == "error":
            said += output["traceback"]
        else:
            said.append(output["data"].get("text/plain", ""))
    return [_COLOUR.sub("", text) for text in said]


def executed(path: Path, device: str = "cpu") -> dict[str, Any]:
    """The notebook with the outputs that it has now, of a fresh process.

    Raises:
        RuntimeError: a cell or an answer raised, or one that should raise did not; has the text.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "CUDA_ASYNC_DEVICE": device, "IPYTHONDIR": folder, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-m", "tests.docs.notebook_process", str(path)],
            cwd=folder,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{path.name}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def differences(kept: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """The cells whose kept text is not what they say now, each with both."""
    for number, (old, new) in enumerate(zip(kept["cells"], now["cells"], strict=True)):
        if old["cell_type"] == "code" and "varies" not in tags(old) and texts(old) != texts(new):
            yield "\n".join([f"cell {number}:", *texts(old), "is now:", *texts(new)])


def renew(path: Path) -> None:
    """Execute a notebook and keep its outputs."""
    now = executed(path)
    now["metadata"] = _METADATA
    path.write_text(written(now), encoding="utf-8")


def _map_text(notebook: dict[str, Any], change: Any) -> dict[str, Any]:
    cells: list[Cell] = []
    for cell in notebook["cells"]:
        cells.append({**cell, "source": change(cell["source"])})
        if cell["cell_type"] == "code":
            cells[-1]["outputs"] = [_map_output(output, change) for output in cell["outputs"]]
    return {**notebook, "cells": cells}


def _map_output(output: dict[str, Any], change: Any) -> dict[str, Any]:
    if output["output_type"] == "stream":
        return {**output, "text": change(output["text"])}
    if "data" in output:
        return {**output, "data": {kind: change(text) for kind, text in output["data"].items()}}
    return output


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _split(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    chosen = sys.argv[1:]
    for notebook in NOTEBOOKS:
        if not chosen or notebook.name in chosen:
            renew(notebook)
            print(f"executed {notebook.relative_to(ROOT)}")
