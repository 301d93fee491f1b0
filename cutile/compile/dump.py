"""Dumps and plans: a kernel's stages as text.

What `CUTILE_DUMP` asks for is printed to stderr or written into files, here for every stage. The plan is what each
backend says of a kernel in rows, and what it was compiled for.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cutile.backend.interface import DEFAULT_OPTIONS, CompileOptions, Target
from cutile.backend.registry import backend, title_of
from cutile.compile.facts import WIDEST
from cutile.config import Config
from cutile.installation import missing
from cutile.ir.core import Function, Value
from cutile.ir.text import print_function
from cutile.ir.types import MutType, TensorType

WIDTH = 118
HEADING = 16


def plan_text(function: Function, target: Target, options: CompileOptions, facts: Mapping[str, Any]) -> str:
    """A kernel's plan: a head, then a heading and a text on each line.

    Args:
        function: the kernel, as written, which tells its parameters.
        target: what it is compiled for.
        options: of the launch.
        facts: of the kernel's `Source` or `Executable`.
    """
    rows = [("types", types_text(function))]
    rows += [*backend(target.backend).explain(facts, target)]
    rows += [("toolchain", str(facts["toolchain"]))] if "toolchain" in facts else []
    lines = [f"{function.name} for {title_of(target)}{_said(options)}"]
    last = ""
    for heading, text in rows:
        shown = heading if heading != last else ""
        last = heading
        first, *more = textwrap.wrap(text, WIDTH - HEADING - 2, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"  {shown:{HEADING}}{first}".rstrip())
        lines += [f"  {'':{HEADING}}  {each}" for each in more]
    return "\n".join(lines)


def types_text(function: Function) -> str:
    """What a kernel's parameters are, for people: `y f32[?] in tiles of 256; a f32`."""
    return "; ".join(_parameter(each) for each in function.parameters)


def _parameter(value: Value) -> str:
    """A parameter's type, without what is so of most.

    Rows that are contiguous and aligned.
    """
    kind = value.type
    tensor = kind.tensor if isinstance(kind, MutType) else kind
    if not isinstance(tensor, TensorType):
        return f"{value.name} {kind}"
    extents = ", ".join("?" if extent is None else str(extent) for extent in tensor.shape)
    text = f"{value.name} {tensor.dtype}[{extents}]"
    if tensor.shape and tensor.strides[-1] != 1:
        text += f" with strides ({', '.join('?' if each is None else str(each) for each in tensor.strides)})"
    if tensor.alignment < WIDEST:
        text += f" aligned to {tensor.alignment}"
    return f"{text} in tiles of {' x '.join(map(str, kind.tile))}" if isinstance(kind, MutType) else text


def without_toolchain(facts: Mapping[str, Any], name: str, error: ImportError) -> dict[str, Any]:
    """The facts of a source that could not be built, with the reason.

    Registers and spills are not counted.
    """
    absent = missing(name)
    names = ", ".join(each.distribution for each in absent)
    why = f"without {names}; {absent[0].remedy}" if absent else f"{error}; `python -m cutile info` says more"
    return {**facts, "toolchain": f"registers and spills are not counted: {why}"}


def _said(options: CompileOptions) -> str:
    """The options that are not the default ones, as they are written."""
    said = [
        f"{each.name}={getattr(options, each.name)!r}"
        for each in fields(options)
        if getattr(options, each.name) != getattr(DEFAULT_OPTIONS, each.name)
    ]
    return f", {', '.join(said)}" if said else ""


_SUFFIX = {"source": "py", "log": "txt"}


class Dump:
    """The stages of one compilation, as far as the settings ask for them."""

    def __init__(self, settings: Config, kernel: str) -> None:
        self._settings = settings
        self._kernel = kernel

    def wants(self, stage: str) -> bool:
        """Whether a stage is asked for."""
        return stage in self._settings.dump

    def ir(self, stage: str, function: Function) -> None:
        """Show a function."""
        if self.wants(stage):
            self.text(stage, print_function(function))

    def text(self, stage: str, text: str) -> None:
        """Show a text."""
        if not self.wants(stage):
            return
        folder = self._settings.dump_directory
        if folder is None:
            print(f"--- {self._kernel}: {stage}\n{text}", file=sys.stderr)
            return
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self._kernel}.{stage}.{_SUFFIX.get(stage, 'ir')}").write_text(text)
