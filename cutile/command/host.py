"""`python -m cutile host`: tensors, launches, streams; `ops` has what kernels say."""

from __future__ import annotations

import argparse
import difflib
import inspect
from collections.abc import Iterator
from typing import Any

import cuda_async
from cutile import errors
from cutile.command.host_entries import Group, HostEntry, entries, rest
from cutile.command.ops import anchor, items, sections
from cutile.compile.spills import SpillWarning
from cutile.errors import ArgumentError
from cutile.interpreter.warned import PaddingWarning


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "host", help="what a caller of kernels uses", description=__doc__
    )
    parser.add_argument("name", nargs="?", help="show all about one: api.zeros, Tensor.partition")
    parser.add_argument("--markdown", action="store_true", help="docs/reference/host.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the list, or one entry, or the page."""
    if options.markdown:
        print(page(), end="")
        return 0
    listed = [entry for group in entries() for entry in (*group.entries, *rest(group))]
    if options.name is None:
        for group in entries():
            print(f"{group.title}\n")
            print(
                "\n".join(f"    {entry.name + entry.signature}\n        {entry.line}" for entry in group.entries) + "\n"
            )
        print(f"{len(listed)} entries; `python -m cutile host NAME` shows all about one.")
        return 0
    print("\n\n".join(map(_whole, _named(str(options.name), listed))))
    return 0


def _named(name: str, listed: list[HostEntry]) -> list[HostEntry]:
    """The entries of a name, as it is written in full, or its last part."""
    matches = [entry for entry in listed if entry.name == name] or [entry for entry in listed if entry.last == name]
    if not matches:
        near = difflib.get_close_matches(name, [each for entry in listed for each in (entry.name, entry.last)], n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "`python -m cutile host` lists what there is"
        raise ArgumentError(f"the host has no {name!r}; {remedy} What kernels may write is in `python -m cutile ops`.")
    return matches


def _whole(entry: HostEntry) -> str:
    lines = [entry.name + entry.signature, "", *("    " + line for line in entry.documentation.splitlines())]
    return "\n".join(line.rstrip() for line in lines)


HEAD = """# The host

Written from the docstrings by `python -m cutile host --markdown`; a test keeps it so. What a caller of kernels uses, by
what people look for; [language.md](language.md) has what kernels say. `api`, `Tensor` and what else names no module is
in `cutile`, which examples call `ct`. Shapes are tuples of extents, each at least 1; strides are in elements, sizes in
bytes where they say so. Errors inherit the built-in that one would expect (`ValueError`, `TypeError`, `MemoryError`);
*Errors*, at the end, lists them.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n".join(f"- [{group.title}](#{anchor(group.title)})" for group in entries())]
    parts[-1] += "\n- [Errors](#errors)\n"
    for group in entries():
        parts.append(f"## {group.title}\n")
        if group.words:
            parts.append(f"{group.words}\n")
        parts.extend(_entry(entry) for entry in group.entries)
        parts.extend(_table(group))
    return "\n".join([*parts, *_errors()])


def _entry(entry: HostEntry) -> str:
    lines = [f"### `{entry.name}`\n"]
    whence = f"From `{entry.module}`." if entry.module != "cutile" and "." not in entry.name else ""
    called = f"`{entry.last}{entry.signature}`" if entry.signature else ""
    if called or whence:
        lines.append("  \n".join(filter(None, (called, whence))) + "\n")
    for heading, text in sections(entry.documentation):
        if heading in ("Example", "Examples"):
            lines.append(f"```pycon\n{text}\n```\n")
        elif heading:
            lines.append(f"{heading}:\n\n{items(text)}\n")
        else:
            lines.append(f"{text}\n")
    return "\n".join(lines)


def _table(group: Group) -> Iterator[str]:
    others = list(rest(group))
    if others:
        yield "| | |\n| --- | --- |"
        yield from (f"| `{_cell(each.name + each.signature)}` | {_cell(each.line)} |" for each in others)
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _is_error(name: str, kind: object) -> bool:
    return inspect.isclass(kind) and issubclass(kind, BaseException) and not name.startswith("_")


def _errors() -> Iterator[str]:
    yield "## Errors\n"
    yield "Which failure gives which: [errors.md](errors.md).\n"
    yield "| Error | Is a | Raised when |\n| --- | --- | --- |"
    members = [(name, place.__name__, getattr(place, name)) for place in (cuda_async, errors) for name in dir(place)]
    members += [(each.__name__, errors.__name__, each) for each in (SpillWarning, PaddingWarning)]
    names = [name for name, _, kind in members if _is_error(name, kind)]
    for name, place, kind in sorted(members, key=lambda each: each[:2]):
        if _is_error(name, kind):
            of = f" of `{place.partition('.')[0]}`" if names.count(name) > 1 else ""
            bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
            yield f"| `{name}`{of} | {bases} | {_cell((inspect.getdoc(kind) or '').partition(chr(10))[0])} |"
    yield ""
