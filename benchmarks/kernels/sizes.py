"""The sizes at which the kernels are shown and measured: real ones, and small ones for quick runs."""

from cuda_async import Device
from cutile import bf16, f16, f32
from kernels import gemm, row_min, saxpy, softmax, vector_add
from kernels.example import Case, Example

EXAMPLES = tuple(module.EXAMPLE for module in (saxpy, vector_add, gemm, softmax, row_min))


def demo_sizes(device: Device, *, quick: bool = False) -> tuple[tuple[Example, Case], ...]:
    """Return the kernels and sizes of `python -m kernels` on `device`. With `quick`, sizes that take no time."""
    if quick:
        return (
            (saxpy.EXAMPLE, Case((1 << 14,))),
            (vector_add.EXAMPLE, Case((1 << 14,))),
            (gemm.EXAMPLE, Case((128, 128, 128))),
            (softmax.EXAMPLE, Case((32, 256))),
            (row_min.EXAMPLE, Case((32, 256))),
        )
    half = [(gemm.EXAMPLE, Case((size, size, size), dtype)) for size in (4096, 8192) for dtype in (f16, bf16)]
    return (
        (saxpy.EXAMPLE, Case((1 << 26,))),
        (vector_add.EXAMPLE, Case((1 << 26,))),
        (gemm.EXAMPLE, Case((2048, 2048, 2048))),
        *(half if device.kind == "cuda" else ()),
        (softmax.EXAMPLE, Case((8192, 4096))),
        (row_min.EXAMPLE, Case((8192, 4096))),
    )


def bench_sizes(device: Device, *, quick: bool = False) -> tuple[tuple[Example, Case], ...]:
    """Return the sizes of `python -m benchmarks.kernels.bench`: the demo's, and on a GPU saxpy on a gigabyte.

    Products of 16 bits are left out: `python -m kernels bench` measures these in pairs.
    """
    large = ((saxpy.EXAMPLE, Case((1 << 28,))),) if device.kind == "cuda" and not quick else ()
    return (*large, *(each for each in demo_sizes(device, quick=quick) if each[1].dtype is f32))
