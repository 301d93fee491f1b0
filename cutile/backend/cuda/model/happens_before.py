"""The happens-before order of events: one graph for all runs."""

Node = tuple[str, int, int]
"""An event: its name, the number of its block or reader, and its iteration (a reader's: its place in the program)."""


class Order:
    """A partial order of events.

    An edge leads from an event to an event that waits for it.
    """

    def __init__(self) -> None:
        self._after: dict[Node, list[Node]] = {}
        self._before: dict[Node, int] = {}
        self._reached: dict[Node, set[Node]] = {}

    def edge(self, first: Node, then: Node) -> None:
        """`then` waits for `first`."""
        self._after.setdefault(first, []).append(then)
        self._after.setdefault(then, [])
        self._before[then] = self._before.get(then, 0) + 1
        self._before.setdefault(first, 0)

    def knows(self, node: Node) -> bool:
        """Whether an event is part of the order."""
        return node in self._before

    def stuck(self) -> list[Node]:
        """The events in cycles, and the events that wait for them: none ever happens."""
        waiting = dict(self._before)
        free = [node for node, count in waiting.items() if not count]
        while free:
            for node in self._after[free.pop()]:
                waiting[node] -= 1
                if not waiting[node]:
                    free.append(node)
        return sorted(node for node, count in waiting.items() if count)

    def follows(self, then: Node, first: Node) -> bool:
        """Whether `then` happens after `first` in every run."""
        if first not in self._reached:
            later: set[Node] = set()
            pending = [first]
            while pending:
                for node in self._after.get(pending.pop(), ()):
                    if node not in later:
                        later.add(node)
                        pending.append(node)
            self._reached[first] = later
        return then in self._reached[first]
