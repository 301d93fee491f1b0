"""What a user holds.

Tensors, their partitions and shared handles, and `api`, the functions that make them.
"""

from cuda_async import register_internal_package
from cutile.host import api
from cutile.host.partition import BorrowedPartition, MutBorrow, Partition
from cutile.host.shared import SharedTensor
from cutile.host.tensor import Tensor, TensorView

register_internal_package("cutile")  # an operation's line is the user's, not one of ours

__all__ = ("BorrowedPartition", "MutBorrow", "Partition", "SharedTensor", "Tensor", "TensorView", "api")
