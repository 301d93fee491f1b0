"""Methods of a `SharedMut`: those of a tensor, and what is written."""

from __future__ import annotations

from typing import Any

from cutile.frontend.families.partition import padding_of, partition_of
from cutile.frontend.frame import Frame
from cutile.frontend.registry import method
from cutile.frontend.values import SharedRef
from cutile.language.markers import padding


@method(SharedRef, "partition")
def _partition(frame: Frame, self: SharedRef, shape: Any, padding: Any = padding.ZERO) -> Any:
    fill = padding_of(frame, padding, "partition")
    return partition_of(frame, self.value, shape, "partition", fill=fill, writes="full")


@method(SharedRef, "partition_permuted")
def _partition_permuted(frame: Frame, self: SharedRef, shape: Any, dim_map: Any) -> Any:
    return partition_of(frame, self.value, shape, "partition_permuted", order=dim_map, writes="full")
