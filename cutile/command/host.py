"""`python -m cutile host`: what a caller of kernels uses, tensors, launches, streams; `ops` has what kernels say."""

from __future__ import annotations

import argparse
import difflib
from typing import Any

from cutile.command.host_entries import HostEntry, entries, rest
from cutile.command.host_page import page
from cutile.errors import ArgumentError


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
    known = [entry for group in entries() for entry in (*group.entries, *rest(group))]
    if options.name is None:
        for group in entries():
            print(f"{group.title}\n")
            print(
                "\n".join(f"    {entry.name + entry.signature}\n        {entry.line}" for entry in group.entries) + "\n"
            )
        print(f"{len(known)} entries; `python -m cutile host NAME` shows all about one.")
        return 0
    print("\n\n".join(map(_whole, _named(str(options.name), known))))
    return 0


def _named(name: str, known: list[HostEntry]) -> list[HostEntry]:
    """The entries of a name, as it is written in full, or its last part."""
    found = [entry for entry in known if entry.name == name] or [entry for entry in known if entry.last == name]
    if not found:
        near = difflib.get_close_matches(name, [each for entry in known for each in (entry.name, entry.last)], n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "`python -m cutile host` lists what there is"
        raise ArgumentError(f"the host has no {name!r}; {remedy} What kernels may write is in `python -m cutile ops`.")
    return found


def _whole(entry: HostEntry) -> str:
    lines = [entry.name + entry.signature, "", *("    " + line for line in entry.documentation.splitlines())]
    return "\n".join(line.rstrip() for line in lines)
