"""Variables of the device: one element each, kept from launch to launch.

They are defined at the top of a module. Kernels use them by name.

    served = ct.Global(ct.i32, 0)                  # at the top of a module

    @ct.entry
    def serve(y: Mut):
        ticket, _ = served.atomic_add(1)           # over all tile blocks of all launches
        y.store(ct.broadcast(ticket, y.shape))
"""

from __future__ import annotations

from typing import Any

from cutile.dtypes import DTypeLike, as_dtype
from cutile.language.markers import ordering, scope
from cutile.language.token import Token
from cutile.tile import Tile, live, outside_kernel


class DeviceVariable:
    """The part of a `cutile.Global` that a kernel uses (`cutile/host/variables.py`).

    Accesses of one tile block happen in program order. They return tokens, for accesses of other memory that must come
    after them. WEAK is for a variable that only one tile block uses, or that all blocks only load.

    Attributes:
        dtype: the element type.
        initial: the value before the first launch.
    """

    def __init__(self, dtype: Any, initial: float = 0) -> None:
        self.dtype: DTypeLike = as_dtype(dtype)
        self.initial = initial

    def load(self, ordering: ordering = ordering.RELAXED, scope: scope = scope.DEVICE) -> tuple[Tile, Token]:
        """The value as a scalar, and a token. `ordering`: WEAK, RELAXED or ACQUIRE.

        Example:
            >>> limit = ct.Global(ct.i32, 3)
            >>> @ct.entry
            ... def fill(y: ct.Mut):
            ...     value, _ = limit.load()
            ...     y.store(ct.broadcast(value, y.shape))
            >>> fill(ct.api.zeros((2,), ct.i32).partition((2,))).first().unpartition().to_numpy().sync().tolist()
            [3, 3]
        """
        return self._live("load", ordering, scope)

    def store(self, value: Tile | float, ordering: ordering = ordering.RELAXED, scope: scope = scope.DEVICE) -> Token:
        """Set the value; give a token. `ordering`: WEAK, RELAXED or RELEASE.

        Example:
            >>> largest = ct.Global(ct.f32)
            >>> @ct.entry
            ... def note(y: ct.Mut):
            ...     largest.store(ct.reduce_max(y.load(), 0))
            >>> _ = note(ct.api.arange(4, ct.f32).partition((4,))).sync()
            >>> float(largest.read().sync())
            3.0
        """
        return self._live("store", value, ordering, scope)

    def atomic_add(
        self, value: Tile | float, ordering: ordering = ordering.RELAXED, scope: scope = scope.DEVICE
    ) -> tuple[Tile, Token]:
        """Add to the value, atomically; give the value before, and a token.

        For variables of i32, i64, u32, u64, f16, bf16, f32 and f64.

        Example:
            >>> served = ct.Global(ct.i32)
            >>> @ct.entry
            ... def count(y: ct.Mut):
            ...     served.atomic_add(1)
            >>> _ = count(ct.api.zeros((6,)).partition((2,))).sync()
            >>> int(served.read().sync())                                 # three tile blocks
            3
        """
        return self._live("atomic_add", value, ordering, scope)

    def _live(self, method: str, *args: Any) -> Any:
        """Call a method in an interpreted kernel; on the host it is an error."""
        running = live.get()
        return outside_kernel(f"Global.{method}") if running is None else running.method(self, method, args)
