"""Where a specialised kernel has its ring and what it stores on the way, and by which maps tensors are copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutile.backend.cuda.layout import Layout, round_up
from cutile.backend.cuda.lower import Lowering
from cutile.backend.cuda.specialised.record import BARRIER_BYTES, Specialised
from cutile.backend.cuda.target import Architecture
from cutile.backend.interface import TensorMap
from cutile.ir.core import Function, Op, Value


class Places(Lowering):
    """The memory and the names that the loading and the computing warps share."""

    _early = True

    def __init__(
        self, function: Function, plan: Specialised, arch: Architecture, accumulators: Sequence[tuple[Op, Layout]]
    ) -> None:
        super().__init__(function, round_up(4 * plan.groups), arch, accumulators)
        self._plan = plan
        self._warps = 4 * plan.groups
        self._slots_at = self._arena.reserve(plan.slots * plan.slot_bytes)
        staged = self._warps * plan.store_panels.nbytes if plan.store is not None else 0
        # A tile is stored whole, or in parts of what other thread blocks have sent: the two share a place.
        self._staging = self._arena.reserve(max(plan.buffers * staged, plan.nearby_bytes))
        barriers = 2 * plan.slots + plan.more_barriers
        self._barriers = self._arena.reserve((barriers + bool(plan.asserts)) * BARRIER_BYTES)
        self._flag = self._barriers + barriers * BARRIER_BYTES if plan.asserts else 0
        """Where a word says whether an assertion of this thread block failed; 0 if it asserts nothing."""
        self._failed: Value | None = None
        self._maps: dict[tuple[Value, TensorMap], str] = {}

    @property
    def _of_ring(self) -> dict[str, Any]:
        """Which ring operations are about."""
        return {"slots": self._plan.slots, "offset": self._barriers}

    @property
    def _of_slots(self) -> dict[str, Any]:
        """Where the slots of the ring are."""
        return {"slots": self._plan.slots, "slot_bytes": self._plan.slot_bytes, "place": self._slots_at}

    @property
    def _behind(self) -> int:
        """Where the barriers behind the ring's are."""
        return self._barriers + 2 * self._plan.slots * BARRIER_BYTES

    def _map_name(self, tensor: Value, form: TensorMap) -> str:
        """The name of the parameter with a tensor's map."""
        key = (tensor, form)
        if key not in self._maps:
            taken = sum(each[0] is tensor for each in self._maps)
            self._maps[key] = f"{tensor.name}_map" + (f"_{taken}" if taken else "")
        return self._maps[key]
