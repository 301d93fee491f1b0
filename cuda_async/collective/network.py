"""`Network`: the time of collectives between simulated devices; lost, late ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

__all__ = ("Network",)


@dataclass(frozen=True, slots=True)
class Network:
    """The links between simulated devices: a time for each message and for each byte.

    The time of a collective is that of the ring algorithm, which NCCL uses for large data (Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).

    Attributes:
        latency_s: seconds for one message between two neighbours.
        bytes_per_s: bytes that one rank sends in a second, while it receives as many.
        lost: ranks that never come to a meeting.
        late: seconds by which ranks come later than they called.
        start_s: seconds that each collective and message takes beside its steps.
        node: the number of ranks of one machine, whose numbers are consecutive; 0 if all are on one.
        between_s: seconds for one message between two machines.
        between_bytes_per_s: bytes that one rank sends to another machine in a second. In a collective the ranks of a
            machine use all of their links together.

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
            nbytes: the bytes of one rank's operand.
            ranks: the ranks that take part; a number `n` stands for ranks 0 to n - 1.
        """
        members = range(ranks) if isinstance(ranks, int) else ranks
        world = len(members)
        others = world - 1
        crossings = len({rank // self.node for rank in members}) - 1 if self.node else 0
        # A piece passes each link of the ring but one, so that latencies add up. The slowest link limits the rate.
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
        # Broadcasts and reductions: the pieces follow one another along the ring.
        return self.start_s + latency + nbytes / rate
