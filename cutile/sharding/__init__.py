"""Tensors whose parts lie on several devices: see `mesh.py`."""

from cutile.sharding.mesh import Mesh
from cutile.sharding.sharded import PARTIAL, Sharded

__all__ = ("PARTIAL", "Mesh", "Sharded")
