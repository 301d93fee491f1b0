"""Pictures of operations and of captured graphs, as data: nodes and their order.

`Picture.text` draws them as text, `svg.py` as SVG.

    Picture("then, built", nodes)        # in the order in which they run; each has the indices of its sources

Nothing is run for a picture. So operations that exist only at run time, such as those that functions given to `then`
return, are not in it. Of a large composition the nodes nearest to the result are drawn, of a large graph the first
steps. One more node counts the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from cuda_async.site import cell_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cuda_async.core.operation import Operation
    from cuda_async.recorder import Step

__all__ = ("Node", "Picture", "expression", "picture_of_op", "picture_of_steps")

MAX_NODES = 60
"""Nodes drawn by default; one more stands for the others. Chosen so that a reader still sees the whole."""

_MAX_NAMES = 12  # in an expression
_MAX_SOURCES = 12  # of one operation in an expression


@dataclass(frozen=True, slots=True)
class Node:
    """One box.

    Attributes:
        label: the operation's name.
        detail: its arguments, or the function that it calls; may be empty.
        site: the file and line that made it; may be empty.
        sources: indices of the nodes before it that it follows.
        has_effects: as `Operation.has_effects`; the box is coloured. Each step of a graph has effects.
    """

    label: str
    detail: str
    site: str
    sources: tuple[int, ...]
    has_effects: bool = False

    @property
    def caption(self) -> str:
        """Label and detail."""
        return f"{self.label} {self.detail}".rstrip()


@dataclass(frozen=True, slots=True)
class Picture:
    """A title, and nodes in the order in which they run: sources come first."""

    title: str
    nodes: tuple[Node, ...]

    def text(self) -> str:
        """One line for each node: its number, label, detail, sources and site.

        Numbers begin with 1.
        """
        rows = [(node.caption, _after(node.sources), node.site) for node in self.nodes]
        caption = max((len(row[0]) for row in rows), default=0)
        after = max((len(row[1]) for row in rows), default=0)
        digits = len(str(len(rows)))
        lines = [
            f"{number:>{digits + 2}}  {row[0]:<{caption}}  {row[1]:<{after}}  {row[2]}".rstrip()
            for number, row in enumerate(rows, 1)
        ]
        return "\n".join([self.title, *lines])


def _after(sources: tuple[int, ...]) -> str:
    return f"after {', '.join(str(source + 1) for source in sources)}" if sources else ""


def _place_text(site: tuple[str, int]) -> str:
    cell = cell_of(site[0])
    return f"{cell}, line {site[1]}" if cell else f"{PurePath(site[0]).name}:{site[1]}"


def picture_of_op(op: Operation[Any], limit: int = MAX_NODES) -> Picture:
    """The composition of an operation, in the order in which its parts run.

    Args:
        op: the operation.
        limit: operations that are drawn, those nearest to the result; at least 1.
    """
    near = _nearest(op, limit)
    nodes: list[Node] = []
    numbers: dict[int, int] = {}
    if len(near) < (total := _count(op)):
        nodes.append(Node(f"… {total - len(near):,} more", "", "", ()))  # node 0, a source of the nodes at the border
    # Post-order without recursion: a chain may have ten thousand links.
    stack: list[tuple[Operation[Any], bool]] = [(op, False)]
    while stack:
        current, expanded = stack.pop()
        if id(current) in numbers:
            continue
        sources = list(current.sources())
        if not expanded:
            stack.append((current, True))
            stack += [(source, False) for source in reversed(sources) if id(source) in near]
            continue
        follows = dict.fromkeys(numbers.get(id(source), 0) for source in sources)  # each once, in order
        numbers[id(current)] = len(nodes)
        place = _place_text(current.site)
        nodes.append(Node(current.label(), current.detail(), place, tuple(follows), current.has_effects))
    return Picture(f"{op.label()}, {op.state}, made at {_place_text(op.site)}", tuple(nodes))


def _nearest(op: Operation[Any], limit: int) -> set[int]:
    """The `id`s of the `limit` operations that are nearest to the result."""
    near, waiting = {id(op)}, deque([op])
    while waiting:
        for source in waiting.popleft().sources():
            if len(near) >= limit:
                return near
            if id(source) not in near:
                near.add(id(source))
                waiting.append(source)
    return near


def _count(op: Operation[Any]) -> int:
    seen, waiting = {id(op)}, [op]
    while waiting:
        for source in waiting.pop().sources():
            if id(source) not in seen:
                seen.add(id(source))
                waiting.append(source)
    return len(seen)


def expression(op: Operation[Any]) -> str:
    """The composition in one line, `then(zip(value, saxpy))`, shortened by dots."""
    left = _MAX_NAMES

    def write(operation: Operation[Any]) -> str:
        nonlocal left
        left -= 1
        sources = list(operation.sources())
        if not sources:
            return operation.label()
        inner = [write(source) if left > 0 else "…" for source in sources[:_MAX_SOURCES]]
        if len(sources) > len(inner):
            inner.append("…")
        return f"{operation.label()}({', '.join(inner)})"

    return write(op)


def picture_of_steps(title: str, steps: Iterable[Step], limit: int = MAX_NODES) -> Picture:
    """The recorded steps of a graph.

    A step follows an earlier one if both use the same memory, and one of the two writes it.

    Args:
        title: of the picture.
        steps: in the order in which they were recorded.
        limit: steps that are drawn, the first ones.
    """
    steps = list(steps)
    numbers: dict[int, int] = {}  # of storages, by `id`, in the order of their first uses
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    nodes: list[Node] = []
    sources_of_rest: dict[int, None] = {}  # drawn steps that the steps behind them follow
    for number, step in enumerate(steps):
        sources: dict[int, None] = {}
        for storage, writes in step.uses.items():
            numbers.setdefault(storage, len(numbers) + 1)
            if storage in writer:
                sources[writer[storage]] = None
            if writes:
                sources.update(dict.fromkeys(readers.pop(storage, ())))
        for storage, writes in step.uses.items():
            if writes:
                writer[storage] = number
            else:
                readers.setdefault(storage, []).append(number)
        if number < limit:
            uses, place = _uses(step, numbers), _place_text(step.site)
            nodes.append(Node(step.label, uses, place, tuple(sorted(sources)), True))
        else:
            sources_of_rest.update(dict.fromkeys(source for source in sources if source < limit))
    if len(steps) > limit:
        nodes.append(Node(f"… {len(steps) - limit:,} more", "", "", tuple(sorted(sources_of_rest))))
    return Picture(title, tuple(nodes))


def _uses(step: Step, numbers: dict[int, int]) -> str:
    kinds = {True: "writes", False: "reads"}
    parts: list[str] = []
    for writes, word in kinds.items():
        used = [f"#{numbers[storage]}" for storage, written in step.uses.items() if written is writes]
        if used:
            parts.append(f"{word} {', '.join(used)}")
    return ", ".join(parts)
