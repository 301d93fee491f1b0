"""`python -m cutile ops`: every operation of the kernel language.

With signature, dtypes and backends.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from cutile.command.catalogue import Entry, catalogue
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


HEAD = """# The kernel language

Written from the definitions by `python -m cutile ops --markdown`; a test keeps it so. Every operation works on every
backend, `reference`, `cpu` and `cuda`, unless its row says otherwise, and means what its example shows. In examples
`run(f, x, ...)` computes `f` on tiles with these elements; `x_in` is the tensor that `x` was loaded from, `x_at` a
pointer to its first element (the kernel then says `@entry(unsafe=True)`), and `result` the `Mut` that takes the value.

Errors are in units in the last place of the dtype, against the exact value; f16 and bf16 are computed in f32 and
rounded once. Where no error is given, nothing rounds, or it rounds correctly (0.5).
"""


FIRST_HOUR: dict[str, tuple[str, ...]] = {
    "Which tile this is": ("get_tile_block_id", "get_num_tile_blocks", "num_tiles"),
    "Loads": ("load_tile_like", "Mut.load", "Tensor.partition", "Partition.load", "Tensor.load_tile", "gather"),
    "Stores": ("Mut.store", "scatter", "atomic_add"),
    "New tiles": ("constant", "iota"),
    "Arithmetic": ("x * y", "x / y", "max_tile", "min_tile", "exp", "log", "sqrt", "tanh"),
    "Choice": ("x < y", "select"),
    "Shape and type": ("Tile.reshape", "Tile.transpose", "Tile.astype"),
    "Along an axis": ("reduce_sum", "reduce_max"),
    "Products": ("mma",),
}


"""Thirty entries that the first kernels are written with, by what one wants."""


FAMILIES = {
    "arith": "Arithmetic and bits",
    "math": "Functions",
    "compare": "Comparison and choice",
    "cast": "Conversion",
    "create": "Creation",
    "shape": "Shape",
    "reduce": "Reduction",
    "scan": "Scans",
    "matmul": "Matrix products",
    "memory": "Loads, stores, partitions",
    "pointer": "Pointers",
    "atomic": "Atomics",
    "grid": "The grid",
    "token": "Order of accesses",
    "debug": "Printing and assertions",
    "language": "Compile-time facts, and what other operations are made of",
}


def page(entries: Sequence[Entry]) -> str:
    """The whole page."""
    order = [*FAMILIES]
    known = sorted(entries, key=lambda each: (order.index(each.family) if each.family in order else 99, each.family))
    parts = [HEAD, *_first_hour(known)]
    for name, group in groupby(known, key=lambda each: each.family):
        parts.append(f"## {FAMILIES.get(name, name.capitalize())}\n")
        parts.extend(_entry(each) for each in group)
    return "\n".join(parts)


def anchor(heading: str) -> str:
    """A heading's anchor: what a link to it says behind `#`.

    No heading above has the same.
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(headings: Iterable[str]) -> list[str]:
    """What links to the headings of a page say, in order.

    Of equal ones, all but the first are numbered.
    """
    seen: Counter[str] = Counter()
    anchors: list[str] = []
    for plain in map(anchor, headings):
        anchors.append(f"{plain}-{seen[plain]}" if seen[plain] else plain)
        seen[plain] += 1
    return anchors


def _first_hour(order: Sequence[Entry]) -> Iterator[str]:
    by_name = {entry.name: entry for entry in order}
    place = dict(zip(by_name, anchors(entry.name + entry.signature for entry in order), strict=True))
    yield "## The first hour\n"
    yield "Thirty that most kernels are written with; the rest follows, by family.\n"
    yield "| | | |\n| --- | --- | --- |"
    for purpose, names in FIRST_HOUR.items():
        for name in names:
            entry = by_name[name]
            line = re.split(r"(?<=\.)\s", " ".join(entry.text.split("\n\n")[0].split()))[0].replace("|", "\\|")
            yield f"| {purpose} | [`{name}`](#{place[name]}) | {line} |"
            purpose = ""
    titles = [FAMILIES[name] for name in FAMILIES if any(entry.family == name for entry in order)]
    yield "\n" + ", ".join(f"[{title}](#{anchor(title)})" for title in titles) + ".\n"


SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Example", "Examples")


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The sections of a docstring, in order.

    What heads each, "" for prose, and its lines without their indent.
    """
    heading, lines = "", list[str]()
    for line in [*text.splitlines(), "Args:"]:
        if line.endswith(":") and line[:-1] in SECTIONS:
            body = inspect.cleandoc("\n".join(["", *lines]))
            if body:
                yield heading, body
            heading, lines = line[:-1], []
        elif heading and line and not line.startswith(" "):  # prose behind a section
            yield heading, inspect.cleandoc("\n".join(["", *lines]))
            heading, lines = "", [line]
        else:
            lines.append(line)


def items(text: str) -> str:
    """`name: words` on lines of their own, each with its further lines, as a list."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and lines:
            lines[-1] += " " + line.strip()
        elif line.strip():
            lines.append(line.strip())
    return "\n".join("- " + re.sub(r"^(\*{0,2}[\w, ]+|`[^`]+`): ", _bold, item) for item in lines)


def _bold(match: re.Match[str]) -> str:
    names = match[1] if match[1].startswith("`") else ", ".join(f"`{name}`" for name in match[1].split(", "))
    return f"{names}: "


def _entry(entry: Entry) -> str:
    lines = [f"### `{entry.name}{entry.signature}`\n"]
    for heading, text in sections(entry.text):
        listed = items(text)
        if heading and listed.count("\n"):
            lines.append(f"{heading}:\n\n{listed}\n")
        else:
            lines.append(f"{heading}: {listed.removeprefix('- ')}\n" if heading else f"{text}\n")
    facts: list[str] = []
    if entry.dtypes:
        facts.append("dtypes " + " ".join(entry.dtypes))
    inexact = {name: bound for name, bound in entry.accuracy.items() if bound > 0.501}
    if inexact:
        facts.append("error at most " + ", ".join(f"{bound:g} ulp in {name}" for name, bound in inexact.items()))
    if entry.note:
        facts.append(entry.note)
    if entry.effect != "pure":
        facts.append(f"{entry.effect} memory")
    if facts:
        lines.append(f"{'; '.join(facts)}.\n")
    if entry.example:
        lines.append(f"```pycon\n{entry.example}\n```\n")
    return "\n".join(lines)
