"""The names that tensors, partitions and `api` had in cuda-async 0.0.1.

Each docstring gives the present name, whose docstring has the arguments and the errors.

| then | now |
| --- | --- |
| `tensor.arc()`, `partition.arc()` | `tensor.shared()`, `partition.unpartition().shared()` |
| `partition.unwrap()`, `arc.unwrap()` | `partition.unpartition()`, `handle.unwrap_arc()` |
| `tensor.unwrap()` | `handle.unwrap_arc()`; of a tensor that is not shared, itself |
| `copy(tensor)`, `tensor.copy()` | `api.dup(tensor)`, `tensor.dup()` |
| `rand_f32(shape, seed)`, `rand_f64` | `api.rand(shape, seed, f32)`, `api.rand(shape, seed, f64)` |
| `randn_f32(mean, std, shape, seed)`, `randn_f64` | `api.randn(mean, std, shape, seed, f32)`, the same with `f64` |

The methods are on every tensor and partition. `cuda_async.compat` has the old methods of operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from cutile.dtypes import f32, f64

if TYPE_CHECKING:
    from cuda_async import DeviceOp
    from cutile.host.partition import Partition
    from cutile.host.shared import SharedTensor
    from cutile.host.tensor import Tensor

__all__ = (
    "OldPartitionMethods",
    "OldTensorMethods",
    "copy",
    "rand_f32",
    "rand_f64",
    "randn_f32",
    "randn_f64",
)


class OldTensorMethods:
    """Methods of tensors in 0.0.1."""

    __slots__ = ()

    def arc(self) -> SharedTensor:
        """`shared()`."""
        return cast("Tensor", self).shared()

    def copy(self) -> DeviceOp[Tensor]:
        """`dup()`."""
        return cast("Tensor", self).dup()

    def unwrap(self) -> Tensor:
        """`unwrap_arc()` of a shared handle; a tensor that is not shared returns itself.

        Raises:
            OwnershipError: there are other owners.
        """
        unwrap_arc = getattr(self, "unwrap_arc", None)
        return cast("Tensor", self) if unwrap_arc is None else unwrap_arc()


class OldPartitionMethods:
    """Methods of partitions in 0.0.1."""

    __slots__ = ()

    def arc(self) -> SharedTensor:
        """`unpartition().shared()`."""
        return cast("Partition", self).unpartition().shared()

    def unwrap(self) -> Tensor:
        """`unpartition()`."""
        return cast("Partition", self).unpartition()


def copy(tensor: Tensor) -> DeviceOp[Tensor]:
    """`api.dup(tensor)`."""
    return tensor.dup()


def rand_f32(shape: Any, seed: int | None = None) -> DeviceOp[Tensor]:
    """`api.rand(shape, seed, f32)`."""
    from cutile.host.random import rand

    return rand(shape, seed, f32)


def rand_f64(shape: Any, seed: int | None = None) -> DeviceOp[Tensor]:
    """`api.rand(shape, seed, f64)`."""
    from cutile.host.random import rand

    return rand(shape, seed, f64)


def randn_f32(mean: float, std: float, shape: Any, seed: int | None = None) -> DeviceOp[Tensor]:
    """`api.randn(mean, std, shape, seed, f32)`."""
    from cutile.host.random import randn

    return randn(mean, std, shape, seed, f32)


def randn_f64(mean: float, std: float, shape: Any, seed: int | None = None) -> DeviceOp[Tensor]:
    """`api.randn(mean, std, shape, seed, f64)`."""
    from cutile.host.random import randn

    return randn(mean, std, shape, seed, f64)
