"""IPython's autoreload over a module of kernels: `python -m tests.launch.autoreload_run FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

import cutile as ct

TEXT = """
import cutile as ct
from cutile import Mut

FACTOR = {factor}

def helper(t, bias={bias}):
    return t * {inner} + bias


@ct.entry
def scaled(y: Mut, *, N: ct.Const = {n}):
    y.store(helper(y.load()) * FACTOR + {add} * N)
"""
BEFORE = {"factor": 1, "bias": 0, "inner": 1, "n": 1, "add": 0}
EDITS = [{}, {"inner": 3}, {"bias": 2}, {"factor": 10}, {"add": 1}, {"n": 7}, {"inner": 4, "add": 2}]


def main(mode: str, file: Path) -> None:
    """Edit a module, and launch what was imported from it, as cells of a notebook."""
    shell: Any = InteractiveShell.instance()

    def cell(text: str) -> Any:
        result = shell.run_cell(text, store_history=False)
        result.raise_error()
        return result.result

    values = dict(BEFORE)
    file.write_text(TEXT.format(**values))
    cell(f"%load_ext autoreload\n%autoreload {mode}")
    cell(f"from cutile import api, f32\nfrom {file.stem} import scaled")
    for number, edit in enumerate(EDITS, 1):
        values |= edit
        file.write_text(TEXT.format(**values))
        later = time.time() + 10 * number  # IPython goes by the file's time, which is coarse
        os.utime(file, (later, later))
        found = cell("float(scaled(api.ones((4,), f32).partition((4,))).first().unpartition().to_host_vec().sync()[0])")
        wanted = (values["inner"] + values["bias"]) * values["factor"] + values["add"] * values["n"]
        assert found == wanted, f"{edit}: {found}, and not {wanted}"


if __name__ == "__main__":
    with ct.use_backend("reference"):
        sys.path.insert(0, sys.argv[1])
        for position, mode in enumerate(("2", "2-")):  # changed functions one by one; the module as a whole
            main(mode, Path(sys.argv[1]) / f"edited_kernels_{position}.py")
    print("all seen")
