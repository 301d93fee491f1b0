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

from cutile.backend.interface import CompileOptions
from cutile.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from cutile.entry import Kernel, entry
from cutile.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    CutileError,
    GenericsError,
    IRError,
    KernelError,
    KernelNameError,
    KernelSyntaxError,
    KernelTypeError,
    LaunchError,
    UnsupportedTargetError,
)
from cutile.host import Partition, SharedTensor, Tensor, TensorView, api
from cutile.language import (
    Const,
    Dyn,
    Mut,
    broadcast,
    ceil,
    ceil_div,
    constant,
    convert_tile,
    cos,
    exp,
    exp2,
    floor,
    fma,
    get_num_tile_blocks,
    get_tile_block_id,
    iota,
    load_tile,
    load_tile_like,
    log,
    log2,
    max_tile,
    min_tile,
    mma,
    num_tiles,
    permute,
    reduce_max,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reshape,
    rsqrt,
    select,
    sin,
    sqrt,
    static_range,
    tanh,
    transpose,
)
from cutile.launch.kernel_op import KernelOp
from cutile.launch.target import use_backend
from cutile.tile import Tile

__version__ = "0.1.0"

__all__ = (
    "ArgumentError",
    "ArgumentTypeError",
    "CompilationError",
    "CompileOptions",
    "Const",
    "CutileError",
    "DType",
    "Dyn",
    "GenericsError",
    "IRError",
    "Kernel",
    "KernelError",
    "KernelNameError",
    "KernelOp",
    "KernelSyntaxError",
    "KernelTypeError",
    "LaunchError",
    "Mut",
    "Partition",
    "SharedTensor",
    "Tensor",
    "TensorView",
    "Tile",
    "UnsupportedTargetError",
    "api",
    "bf16",
    "bool_",
    "broadcast",
    "ceil",
    "ceil_div",
    "constant",
    "convert_tile",
    "cos",
    "entry",
    "exp",
    "exp2",
    "f16",
    "f32",
    "f64",
    "floor",
    "fma",
    "get_num_tile_blocks",
    "get_tile_block_id",
    "i16",
    "i32",
    "i64",
    "i8",
    "iota",
    "load_tile",
    "load_tile_like",
    "log",
    "log2",
    "max_tile",
    "min_tile",
    "mma",
    "num_tiles",
    "permute",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reshape",
    "rsqrt",
    "select",
    "sin",
    "sqrt",
    "static_range",
    "tanh",
    "transpose",
    "u16",
    "u32",
    "u64",
    "u8",
    "use_backend",
)
