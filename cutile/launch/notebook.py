"""In notebooks: short errors, cards of kernels and results, coloured code."""

from __future__ import annotations

import importlib
from typing import Any

from cuda_async.brief import brief
from cuda_async.svg import MONOSPACED, escape
from cutile.compile.kernels import KernelCache
from cutile.errors import CutileError

__all__ = ("Listing", "kernel_html", "kernel_text", "result_html", "result_text")

CutileError._render_traceback_ = brief  # type: ignore[attr-defined]  # the leaf of errors imports nothing


def kernel_text(kernel: KernelCache, doc: str) -> str:
    """A kernel: its signature, docstring, and what was compiled of it."""
    parts = [kernel.source.signature_text, doc] if doc else [kernel.source.signature_text]
    return "\n\n".join([*parts, *_compiled(kernel)])


def kernel_html(kernel: KernelCache, doc: str) -> str:
    """The same for a notebook."""
    style = f"margin:6px 0 0;{MONOSPACED}"
    compiled = "".join(f'<pre style="{style};opacity:.8">{escape(head)}</pre>' for head in _compiled(kernel))
    return (
        f'<div style="{MONOSPACED}"><div style="font-weight:bold">{escape(kernel.source.signature_text)}</div>'
        f'<pre style="{style}">{escape(doc)}</pre>{compiled}</div>'
    )


def _compiled(kernel: KernelCache) -> list[str]:
    """What was compiled, for which types and target.

    Each plan, as `Kernel.explain` has it.
    """
    return [compiled.plan for compiled in kernel.compiled()] or ["not compiled yet"]


def result_text(result: tuple[Any, ...]) -> str:
    """What a launch yields: a line for each argument."""
    named: Any = result
    fields: tuple[str, ...] = named._fields
    width = max(map(len, fields), default=0)
    rows = [f"  {name:{width}} = {item!r}" for name, item in zip(fields, result, strict=True)]
    return "\n".join([f"{type(result).__name__}:", *rows])


def result_html(result: tuple[Any, ...]) -> str:
    """The same for a notebook."""
    return f'<pre style="margin:0;{MONOSPACED}">{escape(result_text(result))}</pre>'


class Listing(str):
    """The text of a stage of a compilation.

    A cell that ends with it shows its lines, not one long literal.
    """

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return f'<pre style="margin:0;{MONOSPACED}">{_coloured(str(self))}</pre>'


def _coloured(text: str) -> str:
    """Python text as HTML with colours, where IPython has brought Pygments.

    Other stages as they are.
    """
    if not text.startswith("# kernel"):
        return escape(text)
    try:
        pygments: Any = importlib.import_module("pygments")
        formatters: Any = importlib.import_module("pygments.formatters")
        lexers: Any = importlib.import_module("pygments.lexers")
    except ImportError:
        return escape(text)
    # One style for light and dark pages: these colours are made for both grounds.
    formatter = formatters.HtmlFormatter(noclasses=True, nowrap=True, style="solarized-light")
    return pygments.highlight(text, lexers.PythonLexer(), formatter)
