"""`await` at the top level: IPython's cells, and Python's own asynchronous prompt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 500


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
assert "data:image/svg+xml" in formats["text/html"], formats
assert "map(value)" in formats["text/plain"], formats
op = shell.run_cell("value(2).map(lambda n: n + 1)", store_history=True).result
assert "made at Cell In[" in op._repr_html_() and "ipython-input" not in op._repr_html_(), op._repr_html_()

# An error in a cell leaves the next cells alone.
failed = shell.run_cell("await value(1).map(lambda n: n // 0)", store_history=False)
error = failed.error_in_exec
assert isinstance(error, ZeroDivisionError)
shown = shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__)
lines = "\\n".join(shown).splitlines()
assert len(lines) <= 15, lines
assert cell("await value(7)") == 7

# An operation that a cell only showed holds what was lent to it, and IPython holds the operation.
shell.run_cell("Affine(x, 3, 1)", store_history=True)
refused = shell.run_cell("Affine(x, 3, 1)", store_history=False).error_in_exec
assert "Run it or wait for it (sync(), await), discard() it" in str(refused)
assert f"Out[{max(shell.user_ns['Out'])}] has it, if it has no name" in str(refused)
assert "the operation made at Cell In[" in str(refused), refused
shown = refused._render_traceback_()
assert len(shown) <= 15, shown
assert shown[0].startswith("Cell In[") and shown[0].endswith(", line 1"), shown
cell("Out[max(Out)].discard()")
cell("await Affine(x, 1, 0)")

# A kernel of a cell, an error in it, an error under await: by the cell's number, in few lines.
cell('''
import cutile as ct
@ct.entry
def add(y: ct.Mut, x: ct.Tensor):
    "y += x"
    y.store(y.load() + ct.load_tile_lik(x, y))
a, b = await zip(ct.api.ones((4,)), ct.api.ones((4,)))
''')
failed = shell.run_cell("await add(a.mut.partition((2,)), b)", store_history=False).error_in_exec
lines = failed._render_traceback_()
assert len(lines) <= 15, lines
assert any("Cell In[" in line and "line 5, in add" in line for line in lines), lines
assert "cutile/" not in "".join(lines), lines
formats, _ = shell.display_formatter.format(shell.user_ns["a"])
assert "[1., 1., 1., 1.]" in formats["text/plain"] and "[1., 1., 1., 1.]" in formats["text/html"], formats
formats, _ = shell.display_formatter.format(shell.user_ns["add"])
assert formats["text/plain"].startswith("add(y: ct.Mut, x: ct.Tensor)"), formats
assert "y += x" in formats["text/html"], formats

# A partition within an operation that a cell showed.
shell.run_cell("launch = add(a.partition((2,)), b)", store_history=True)
refused = shell.run_cell("a.mut", store_history=False).error_in_exec
assert "is held by the partition made at Cell In[" in str(refused), refused
assert str(refused).endswith("Out[...] has it, if it has no name."), refused
cell("launch.discard()")

# What is long breaks between words, and code does not; a lambda of the line that failed is not told twice.
failed = shell.run_cell("await ct.api.ones((4,)).then(lambda t: t.to_numpy()).map(lambda t: t.sum())").error_in_exec
shown = failed._render_traceback_()
assert max(map(len, shown)) <= 100 and len(set(shown)) == len(shown), shown
assert "too early to read the values of a tensor" in " ".join(shown), shown

# An assertion in a kernel, by the cell's number; generated text as lines, in colours.
cell('''
@ct.entry
def positive(y: ct.Mut):
    assert ct.reduce_min(y.load(), 0) > 0.0, "too small"
    y.store(-y.load())
''')
failed = shell.run_cell("positive(ct.api.zeros((4,)).partition((4,))).sync()", store_history=False).error_in_exec
assert ", line 3, in tile block (0, 0, 0)" in str(failed) and "  Cell In[" in str(failed), failed
formats, _ = shell.display_formatter.format(cell("positive.inspect(a.mut.partition((2,)), arch='sm_90a')"))
assert "\\ndef positive(" in formats["text/plain"] and "\'" not in formats["text/plain"][:1], formats
assert "<span style=" in formats["text/html"] and "def" in formats["text/html"], formats
formats, _ = shell.display_formatter.format(cell("positive.inspect(a.mut.partition((2,)), stage='ir')"))
assert "mut&lt;f32" in formats["text/html"], formats
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
