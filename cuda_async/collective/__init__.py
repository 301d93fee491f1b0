"""Collectives among devices and processes, as operations: see `communicator.py`."""

from cuda_async.collective.buffer import Buffer, HasBuffer
from cuda_async.collective.communicator import Communicator
from cuda_async.collective.network import Network
from cuda_async.errors import CollectiveError

__all__ = ("Buffer", "CollectiveError", "Communicator", "HasBuffer", "Network")
