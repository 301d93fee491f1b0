"""`Network`: the time of collectives between simulated devices; lost, late ones."""

from __future__ import annotations

from collections.abc import Mapping
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

    Example:
        >>> nvlink = Network(latency_s=2e-6, bytes_per_s=370e9)
        >>> round(nvlink.seconds("all_reduce", 1 << 30, 8) * 1e3, 2)   # milliseconds
        5.11
    """

    latency_s: float = 2e-6
    bytes_per_s: float = 400e9
    lost: frozenset[int] = frozenset()
    late: Mapping[int, float] = field(default_factory=dict[int, float])

    def seconds(self, kind: str, nbytes: int, world: int) -> float:
        """The time of one collective, from the last rank's call to the end.

        Args:
            kind: the collective's name; `message` for a `send` and its `recv`.
            nbytes: what one rank brings.
            world: the number of ranks that take part.
        """
        others = world - 1
        if kind == "barrier":
            return 2 * others * self.latency_s
        if kind == "all_reduce":  # a reduce-scatter, then an all-gather of the parts
            return 2 * others * (self.latency_s + nbytes / world / self.bytes_per_s)
        if kind in ("reduce_scatter", "all_to_all"):
            return others * (self.latency_s + nbytes / world / self.bytes_per_s)
        if kind == "all_gather":
            return others * (self.latency_s + nbytes / self.bytes_per_s)
        # Of a broadcast and a reduction the pieces follow one another along the ring.
        return others * self.latency_s + nbytes / self.bytes_per_s
