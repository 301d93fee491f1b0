"""Tile kernels in Python, compiled through Numba for NVIDIA GPUs and for the CPU.

import cutile as ct
from cutile import Mut, Tensor, api, f32

@ct.entry
def saxpy(y: Mut, a: f32, x: Tensor):
    y.store(a * ct.load_tile_like(x, y) + y.load())

x = api.arange(32, f32).reshape((4, 8)).sync()
y = x.dup().sync()
out = saxpy(y.partition((2, 2)), 2.0, x).sync()
print(out.y.unpartition().to_host_vec().sync())
"""

import sys
from typing import TYPE_CHECKING

import cuda_async as _cuda_async
from cuda_async.hints import remedy_for as _remedy_for
from cutile import language
from cutile.autotune import autotune
from cutile.backend.interface import CompileOptions
from cutile.block_scan import scan_blocks
from cutile.composite import Composite, Launches, compile_ahead, composite, launches_of
from cutile.dtypes import (
    DType,
    bf16,
    bool_,
    f4e2m1fn,
    f4e2m1fnx2,
    f8e4m3fn,
    f8e5m2,
    f8e8m0fnu,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    tf32,
    u8,
    u16,
    u32,
    u64,
)
from cutile.entry import Kernel, entry
from cutile.errors import (
    ArgumentError,
    ArgumentIndexError,
    ArgumentTypeError,
    CheckError,
    CompilationError,
    CutileError,
    ForeignLogError,
    GenericsError,
    IdentityError,
    IRError,
    KernelAssertionError,
    KernelError,
    KernelNameError,
    KernelSyntaxError,
    KernelTypeError,
    LaunchError,
    MissingGenericsError,
    OutOfBoundsError,
    PaddingWarning,
    RaceError,
    SpillWarning,
    StaleRecordError,
    TuningError,
    UninitialisedReadError,
    UnsupportedTargetError,
)
from cutile.frontend.elsewhere import FUNCTIONS as _FOREIGN_FUNCTIONS
from cutile.frontend.elsewhere import dtype_named as _dtype_named
from cutile.host import api
from cutile.host.hints import LANGUAGE as _FOREIGN_LANGUAGE
from cutile.host.variables import Global
from cutile.language import *
from cutile.launch.kernel_op import KernelOp
from cutile.launch.target import interpret, use_backend
from cutile.tile import Tile

# isort: split
# Below `from cutile.language import *`, whose `Tensor` and `Partition` these replace: here they are the host's. The
# front end reads a kernel's annotations as text: there the names are the language's.
from cutile.host import Partition, SharedTensor, Tensor, TensorView

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return [*__all__, "pow"]  # `__all__` leaves `pow` out: see the end of this file


if not TYPE_CHECKING:  # with it, a type checker would accept every name as one of the package's

    def __getattr__(name):
        replacement = _FOREIGN_LANGUAGE.get(name) or _FOREIGN_FUNCTIONS.get(name) or _dtype_named(name)
        if name in api.__all__:
            replacement = f"api.{name}" + (f" on the host, and in a kernel {replacement}" if replacement else "")
        if replacement:
            remedy = f"; write {replacement}"
        elif name in _cuda_async.__all__:
            remedy = f"; write cuda_async.{name}"
        else:
            remedy = _remedy_for(name, __dir__())
        raise AttributeError(f"module 'cutile' has no attribute {name!r}{remedy}", name=name, obj=sys.modules[__name__])


__all__: tuple[str, ...] = (
    "ArgumentError",
    "ArgumentIndexError",
    "ArgumentTypeError",
    "CheckError",
    "CompilationError",
    "CompileOptions",
    "Composite",
    "CutileError",
    "DType",
    "ForeignLogError",
    "GenericsError",
    "Global",
    "IRError",
    "IdentityError",
    "Kernel",
    "KernelAssertionError",
    "KernelError",
    "KernelNameError",
    "KernelOp",
    "KernelSyntaxError",
    "KernelTypeError",
    "LaunchError",
    "Launches",
    "MissingGenericsError",
    "OutOfBoundsError",
    "PaddingWarning",
    "RaceError",
    "SharedTensor",
    "SpillWarning",
    "StaleRecordError",
    "TensorView",
    "Tile",
    "TuningError",
    "UninitialisedReadError",
    "UnsupportedTargetError",
    "api",
    "autotune",
    "bf16",
    "bool_",
    "compile_ahead",
    "composite",
    "entry",
    "f16",
    "f32",
    "f4e2m1fn",
    "f4e2m1fnx2",
    "f64",
    "f8e4m3fn",
    "f8e5m2",
    "f8e8m0fnu",
    "i16",
    "i32",
    "i64",
    "i8",
    "interpret",
    "launches_of",
    "scan_blocks",
    "tf32",
    "u16",
    "u32",
    "u64",
    "u8",
    "use_backend",
)
__all__ += language.__all__
if not TYPE_CHECKING:  # type checkers take no comprehension for `__all__`
    # `ct.pow` is public. A star import must not hide Python's own, which kernels may call as well.
    __all__ = tuple(name for name in __all__ if name != "pow")
