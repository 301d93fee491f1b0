"""The page of the language, as Markdown: `docs/reference/language.md` is what this writes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from cutile.command.catalogue import Entry

HEAD = """# The kernel language

Written from the definitions by `python -m cutile ops --markdown`; a test keeps it so. Every operation works on every
backend, `reference`, `cpu` and `cuda`, unless its row says otherwise, and means what its example shows. In examples
`run(f, x, ...)` computes `f` on tiles with these elements; `x_in` is the tensor that `x` was loaded from, `x_at` a
pointer to its first element (the kernel then says `@entry(unsafe=True)`), and `result` the `Mut` that takes the value.

Errors are in units in the last place of the dtype, against the exact value; f16 and bf16 are computed in f32 and
rounded once. Where no error is given, nothing rounds, or it rounds correctly (0.5).
"""

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
    parts = [HEAD]
    for name, group in groupby(known, key=lambda each: each.family):
        parts.append(f"## {FAMILIES.get(name, name.capitalize())}\n")
        parts.extend(_entry(each) for each in group)
    return "\n".join(parts)


def _entry(entry: Entry) -> str:
    lines = [f"### `{entry.name}{entry.signature}`\n", f"{entry.text}\n"]
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
