"""A process that launches one kernel: prints which of the modules that it was asked about it has imported."""

import sys

import cutile as ct
from cuda_async import Device
from cutile import api


@ct.entry
def axpy(y: ct.Mut, a: ct.f32, x: ct.Tensor) -> None:
    y.store(a * ct.load_tile_like(x, y) + y.load())


with Device.parse("cpu"):
    x, y = api.ones((64,)).sync(), api.ones((64,)).sync()
    axpy(y.partition((16,)), 2.0, x).sync()
print([name for name in sys.argv[1:] if name in sys.modules])
