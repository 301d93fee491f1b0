"""`await` at the top level: IPython's cells, and Python's own asynchronous prompt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


def run(command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()

def cell(text):
    result = shell.run_cell(text, store_history=False)
    result.raise_error()
    return result.result

cell('''
from cuda_async import Device, set_default_device, value, zip
from tests.cuda_async.work import Affine, Read, words
set_default_device(Device.host())
x = await words(1, count=8)
''')
assert cell("(await Affine(x, 3, 1).then(Read)).tolist()") == [4] * 8

# Several at once, in one cell; and a loop that goes on in the next cell with what the last one left in flight.
cell("future = Affine(x, 2, 0).into_future(); future.start()")
assert cell("await future; (await Read(x))[0]") == 8
assert cell("import asyncio; await asyncio.gather(*(zip(value(n), value(1)) for n in range(3)))") == [
    (0, 1), (1, 1), (2, 1)
]

# A drawing is what a cell shows of an operation that was not run.
op = cell("value(1).map(lambda n: n + 1)")
formats, _ = shell.display_formatter.format(op)
assert "<svg" in formats["text/html"], formats
assert "map(value)" in formats["text/plain"], formats

# An error in a cell leaves the next cells alone.
failed = shell.run_cell("await value(1).map(lambda n: n // 0)", store_history=False)
assert isinstance(failed.error_in_exec, ZeroDivisionError)
assert cell("await value(7)") == 7

# An operation that a cell only showed holds what was lent to it, and IPython holds the operation.
shell.run_cell("Affine(x, 3, 1)", store_history=True)
refused = shell.run_cell("Affine(x, 3, 1)", store_history=False).error_in_exec
assert "Run it or wait for it (sync(), await), discard() it" in str(refused)
assert "Out[...] has it, if it has no name" in str(refused)
cell("Out[max(Out)].discard()")
cell("await Affine(x, 1, 0)")
print("all cells ran")
"""


@pytest.mark.slow
def test_await_at_the_top_level_of_ipython() -> None:
    pytest.importorskip("IPython", reason="needs the extra notebook")
    done = run([sys.executable, "-c", CELLS])
    assert done.stdout.rstrip().endswith("all cells ran"), done.stdout + done.stderr


@pytest.mark.slow
def test_await_at_pythons_asynchronous_prompt() -> None:
    lines = """
from cuda_async import Device, set_default_device, value
set_default_device(Device.host())
print("got", await value(20).map(lambda n: n + 1))
print("got", await value(1).then(lambda n: value(2 * n)))
"""
    done = run([sys.executable, "-m", "asyncio"], lines)
    assert "got 21" in done.stdout, done.stdout + done.stderr
    assert "got 2" in done.stdout
