"""One notebook, executed in this process: `python -m tests.docs.notebook_process FILE` prints it with its outputs."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tests.docs.notebooks import answers, read, tags


class _Outputs:
    """What the cell that runs has put out so far, as a notebook's file holds it."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._places: dict[str, dict[str, Any]] = {}

    def stream(self, name: str, text: str) -> None:
        if self.items and self.items[-1].get("name") == name:
            self.items[-1]["text"] += text
        elif text:
            self.items.append({"output_type": "stream", "name": name, "text": text})

    def result(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.items.append({"output_type": "execute_result", "data": data, "metadata": metadata})

    def display(self, data: dict[str, Any], metadata: dict[str, Any], place: str, update: bool) -> None:
        if update and place in self._places:
            self._places[place].update(data=data, metadata=metadata)
            return
        self.items.append({"output_type": "display_data", "data": data, "metadata": metadata})
        self._places[place] = self.items[-1]

    def error(self, kind: type[BaseException], value: BaseException, lines: list[str]) -> None:
        self.items.append(
            {"output_type": "error", "ename": kind.__name__, "evalue": str(value), "traceback": list(lines)}
        )


OUTPUTS = _Outputs()


class _Stream(io.TextIOBase):
    def __init__(self, name: str) -> None:
        self._name = name

    def write(self, s: str) -> int:
        OUTPUTS.stream(self._name, s)
        return len(s)


class _Hook(DisplayHook):
    def write_output_prompt(self) -> None: ...

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        OUTPUTS.result(format_dict, md_dict or {})

    def finish_displayhook(self) -> None: ...


class _Publisher(DisplayPublisher):
    def publish(self, data: Any, metadata: Any = None, *args: Any, **more: Any) -> None:
        transient: dict[str, str] = more.get("transient") or {}
        place = transient.get("display_id", "")
        OUTPUTS.display(data, metadata or {}, place, bool(more.get("update")))


class _Shell(InteractiveShell):
    displayhook_class: Any = _Hook
    display_pub_class: Any = _Publisher

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        OUTPUTS.error(etype, evalue, stb)


def execute(path: Path) -> dict[str, Any]:
    """The notebook with its outputs. Raises RuntimeError where a cell should not have raised, or should have."""
    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "NoColor"
    shell: Any = _Shell.instance(config=settings)
    notebook = read(path)
    folded: list[str] = []
    for cell in notebook["cells"]:
        folded += answers(cell)
        if cell["cell_type"] == "code":
            cell["execution_count"] = shell.execution_count
            cell["outputs"] = _run(shell, cell["source"], raises="raises-exception" in tags(cell))
            for output in cell["outputs"]:
                if output["output_type"] == "execute_result":
                    output["execution_count"] = cell["execution_count"]
    for answer in folded:
        _run(shell, answer, raises=False)
    return notebook


def _run(shell: Any, source: str, *, raises: bool) -> list[dict[str, Any]]:
    OUTPUTS.items = []
    with redirect_stdout(_Stream("stdout")), redirect_stderr(_Stream("stderr")):
        shell.run_cell(source, store_history=True)
    errors = [output for output in OUTPUTS.items if output["output_type"] == "error"]
    if bool(errors) != raises:
        lines = [line for error in errors for line in error["traceback"]]
        raise RuntimeError("\n".join([source, *(lines or ["should have raised, and did not"])]))
    return OUTPUTS.items


if __name__ == "__main__":
    print(json.dumps(execute(Path(sys.argv[1]))))
