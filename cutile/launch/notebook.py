"""In notebooks: short errors, cards of kernels and results, coloured code."""

from __future__ import annotations

import importlib
from typing import Any

from cuda_async.brief import brief
from cuda_async.svg import MONOSPACED, escape
from cutile.compile.kernels import KernelCache
from cutile.errors import CutileError

__all__ = ("Listing", "kernel_html", "kernel_text", "result_html", "result_text")

CutileError._render_traceback_ = brief  # type: ignore[attr-defined]  # set here: `errors` is a leaf, and imports nothing


def kernel_text(kernel: KernelCache, doc: str) -> str:
    """A kernel's signature, docstring and compiled plans, as text."""
    parts = [kernel.source.signature_text, doc] if doc else [kernel.source.signature_text]
    return "\n\n".join([*parts, *_compiled(kernel)])


def kernel_html(kernel: KernelCache, doc: str) -> str:
    """`kernel_text` as HTML."""
    style = f"margin:6px 0 0;{MONOSPACED}"
    compiled = "".join(f'<pre style="{style};opacity:.8">{escape(head)}</pre>' for head in _compiled(kernel))
    return (
        f'<div style="{MONOSPACED}"><div style="font-weight:bold">{escape(kernel.source.signature_text)}</div>'
        f'<pre style="{style}">{escape(doc)}</pre>{compiled}</div>'
    )


def _compiled(kernel: KernelCache) -> list[str]:
    """The plan of each compilation, as `Kernel.explain` shows it."""
    return [compiled.plan for compiled in kernel.compiled()] or ["not compiled yet"]


def result_text(result: tuple[Any, ...]) -> str:
    """A launch's result as text: a line for each argument."""
    named: Any = result
    fields: tuple[str, ...] = named._fields
    width = max(map(len, fields), default=0)
    rows = [f"  {name:{width}} = {item!r}" for name, item in zip(fields, result, strict=True)]
    return "\n".join([f"{type(result).__name__}:", *rows])


def result_html(result: tuple[Any, ...]) -> str:
    """`result_text` as HTML."""
    return f'<pre style="margin:0;{MONOSPACED}">{escape(result_text(result))}</pre>'


class Listing(str):
    """The text of a stage of a compilation.

    Notebooks show it as lines in place of a literal.
    """

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return f'<pre style="margin:0;{MONOSPACED}">{_coloured(str(self))}</pre>'


def _coloured(text: str) -> str:
    """A stage's text as HTML.

    Python is coloured if Pygments, which IPython installs, is there.
    """
    if not text.startswith("# kernel"):
        return escape(text)
    try:
        pygments: Any = importlib.import_module("pygments")
        formatters: Any = importlib.import_module("pygments.formatters")
        lexers: Any = importlib.import_module("pygments.lexers")
    except ImportError:
        return escape(text)
    # Solarized's accent colours are legible on light and on dark pages.
    formatter = formatters.HtmlFormatter(noclasses=True, nowrap=True, style="solarized-light")
    return pygments.highlight(text, lexers.PythonLexer(), formatter)
