"""In notebooks: errors in few lines, a kernel and what a launch yields as cards."""

from __future__ import annotations

from html import escape
from typing import Any

from cuda_async.brief import brief
from cutile.compile.kernels import KernelCache
from cutile.errors import CutileError

__all__ = ("kernel_html", "kernel_text", "result_html", "result_text")

CutileError._render_traceback_ = brief  # type: ignore[attr-defined]  # the leaf of errors imports nothing


def kernel_text(kernel: KernelCache, doc: str) -> str:
    """A kernel: its signature, docstring, and what was compiled of it."""
    parts = [kernel.source.signature_text, doc] if doc else [kernel.source.signature_text]
    return "\n\n".join([*parts, *_compiled(kernel)])


def kernel_html(kernel: KernelCache, doc: str) -> str:
    """The same for a notebook."""
    compiled = "".join(f'<pre style="margin:6px 0 0;opacity:.8">{escape(each)}</pre>' for each in _compiled(kernel))
    return (
        '<div style="font:12px ui-monospace,Menlo,Consolas,monospace">'
        f'<div style="font-weight:bold">{escape(kernel.source.signature_text)}</div>'
        f'<pre style="margin:6px 0 0">{escape(doc)}</pre>{compiled}</div>'
    )


def _compiled(kernel: KernelCache) -> list[str]:
    """What was compiled for what: the head of each generated text, which tells target, types and plan."""
    heads: list[str] = []
    for compiled in kernel.compiled():
        lines = compiled.executable.source.splitlines()
        end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
        kept = [line.removeprefix("# ") for line in lines[:end] if not line.startswith(("# kernel", "# key"))]
        heads.append("\n".join(["compiled", *(f"  {line}" for line in kept)]))
    return heads or ["not compiled yet"]


def result_text(result: tuple[Any, ...]) -> str:
    """What a launch yields: a line for each argument."""
    named: Any = result
    fields: tuple[str, ...] = named._fields
    width = max(map(len, fields), default=0)
    rows = [f"  {name:{width}} = {item!r}" for name, item in zip(fields, result, strict=True)]
    return "\n".join([f"{type(result).__name__}:", *rows])


def result_html(result: tuple[Any, ...]) -> str:
    """The same for a notebook."""
    return f'<pre style="margin:0">{escape(result_text(result))}</pre>'
