"""`Network`: the time of collectives between simulated devices; lost, late ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

__all__ = ("Network",)


@dataclass(frozen=True, slots=True)
class Network:
    """What connects simulated devices: a time for each message and for each byte.

    Collectives take what the ring algorithm takes, the one that NCCL uses for large data (Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).

    Attributes:
        latency_s: seconds for one message between two neighbours.
        bytes_per_s: bytes that one rank sends in a second, while it receives as many.
        lost: ranks that never come to a meeting.
        late: seconds by which ranks come later than they called.
        start_s: seconds of each collective and message beside its steps.
        node: ranks of one machine, which are numbered one behind the other; 0 for all.
        between_s: seconds for one message between two machines.
        between_bytes_per_s: bytes that one rank sends to another machine in a second. The ranks of a machine share
            what they all have in a collective.

    Example:
        >>> nvlink = Network(latency_s=2e-6, bytes_per_s=370e9)
        >>> round(nvlink.seconds("all_reduce", 1 << 30, 8) * 1e3, 2)   # milliseconds
        5.11
    """

    latency_s: float = 2e-6
    bytes_per_s: float = 400e9
    lost: frozenset[int] = frozenset()
    late: Mapping[int, float] = field(default_factory=dict[int, float])
    start_s: float = 0.0
    node: int = 0
    between_s: float = 0.0
    between_bytes_per_s: float = 50e9

    def seconds(self, kind: str, nbytes: int, ranks: int | Collection[int]) -> float:
        """The time of one collective, from the last rank's call to the end.

        Args:
            kind: the collective's name; `message` for a `send` and its `recv`.
            nbytes: what one rank brings.
            ranks: those that take part, or how many of the first.
        """
        members = range(ranks) if isinstance(ranks, int) else ranks
        world = len(members)
        others = world - 1
        crossings = len({rank // self.node for rank in members}) - 1 if self.node else 0
        # A piece passes each link of the ring once, so their latencies add up. The slowest link says how many follow.
        latency = (others - crossings) * self.latency_s + crossings * self.between_s
        rate = self.bytes_per_s
        if crossings:
            rate = min(rate, self.between_bytes_per_s * (1 if kind == "message" else self.node))
        if kind == "barrier":
            return self.start_s + 2 * latency
        if kind == "all_reduce":  # a reduce-scatter, then an all-gather of the parts
            return self.start_s + 2 * (latency + others * nbytes / world / rate)
        if kind in ("reduce_scatter", "all_to_all"):
            return self.start_s + latency + others * nbytes / world / rate
        if kind == "all_gather":
            return self.start_s + latency + others * nbytes / rate
        # Of a broadcast and a reduction the pieces follow one another along the ring.
        return self.start_s + latency + nbytes / rate
