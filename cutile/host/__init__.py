"""The objects that a caller of kernels has.

Tensors, their partitions and shared handles, and `api`, the functions that make tensors.
"""

from cutile.host import api
from cutile.host.partition import BorrowedPartition, MutBorrow, Partition
from cutile.host.shared import SharedTensor
from cutile.host.tensor import Tensor, TensorView

__all__ = ("BorrowedPartition", "MutBorrow", "Partition", "SharedTensor", "Tensor", "TensorView", "api")
