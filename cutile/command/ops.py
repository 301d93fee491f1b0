"""`python -m cutile ops`: every operation of the kernel language, with signature, dtypes and backends."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
from collections.abc import Sequence
from typing import Any

from cutile.command.catalogue import Entry, catalogue
from cutile.command.page import page
from cutile.errors import ArgumentError
from cutile.frontend.elsewhere import FUNCTIONS, METHODS


def add(commands: Any) -> None:
    """Add the command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser("ops", help="what a kernel may write", description=__doc__)
    parser.add_argument("name", nargs="?", help="show all about one: exp2, Tile.reshape")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument("--markdown", action="store_true", help="docs/reference/language.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the list, or one entry."""
    entries = catalogue()
    if options.name:
        entries = tuple(each for each in entries if options.name in (each.name, each.name.rpartition(".")[2]))
        if not entries:
            known = [part for each in catalogue() for part in (each.name, each.name.rpartition(".")[2])]
            near = difflib.get_close_matches(str(options.name), known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else "`python -m cutile ops` lists what it has"
            name = str(options.name).rpartition(".")[2]
            elsewhere = METHODS.get(name) if str(options.name).startswith("Tile.") else FUNCTIONS.get(name)
            remedy = f"write {elsewhere}" if elsewhere else remedy
            raise ArgumentError(f"the language has no {options.name!r}; {remedy}")
    if options.json:
        print(json.dumps([dataclasses.asdict(each) for each in entries], indent=1))
    elif options.markdown:
        print(page(entries), end="")
    elif options.name:
        print("\n\n".join(map(_whole, entries)))
    else:
        print("\n".join(map(_line, entries)))
        print(f"\n{len(entries)} entries; `python -m cutile ops NAME` shows all about one.")
    return 0


def _line(entry: Entry) -> str:
    return f"{entry.name + entry.signature}  {shown_dtypes(entry.dtypes)}".rstrip()


def shown_dtypes(names: Sequence[str]) -> str:
    """Element types in a line."""
    return " ".join(names)


def _whole(entry: Entry) -> str:
    lines = [entry.name + entry.signature, "", *("    " + line for line in entry.text.splitlines())]
    if entry.dtypes:
        lines += ["", f"    dtypes     {shown_dtypes(entry.dtypes)}"]
    if entry.accuracy:
        lines.append("    accuracy   " + ", ".join(f"{name} {bound:g} ulp" for name, bound in entry.accuracy.items()))
    if entry.note:
        lines.append(f"               {entry.note}")
    lines.append(f"    effect     {entry.effect}")
    lines.append(f"    backends   {', '.join(entry.backends)}")
    if entry.example:
        lines += ["", *("    " + line for line in entry.example.splitlines())]
    return "\n".join(lines)
