"""What a user holds.

Tensors, their partitions and shared handles, and `api`, the functions that make them.
"""

from cutile.host import api
from cutile.host.partition import BorrowedPartition, MutBorrow, Partition
from cutile.host.shared import SharedTensor
from cutile.host.tensor import Tensor, TensorView

__all__ = ("BorrowedPartition", "MutBorrow", "Partition", "SharedTensor", "Tensor", "TensorView", "api")
