"""What to write in place of a name that tensors, or functions that make them, have in NumPy, torch or CuPy.

For the remedies of messages, and nothing else; `cutile/frontend/elsewhere.py` is the same for kernels.
"""

from __future__ import annotations

__all__ = ("FUNCTIONS", "KERNEL", "LANGUAGE", "READ", "TENSORS")

READ = "tensor.to_numpy().sync(), or await tensor.to_numpy()"
KERNEL = "a kernel (@cutile.entry), or compute with what to_numpy() gives"


def _reduced(operation: str) -> str:
    return f"a kernel with {operation}, or compute with what to_numpy() gives"


TENSORS: dict[str, str] = {
    "astype": "api.convert(tensor, dtype)",
    "block_until_ready": "sync(), or await, of the operation that makes it",
    "clone": "tensor.dup()",
    "contiguous": "tensor.dup(), whose result is",
    "copy_": "api.memcpy(tensor, source)",
    "cpu": READ,
    "cuda": "tensor.to_device('cuda')",
    "data_ptr": "tensor.device_pointer()",
    "dim": "tensor.ndim",
    "fill": "api.fill(tensor, value)",
    "fill_": "api.fill(tensor, value)",
    "flatten": "tensor.reshape(-1)",
    "float": "api.convert(tensor, 'f32')",
    "get": READ,
    "half": "api.convert(tensor, 'f16')",
    "load": "tensor.to_numpy() on the host; in a kernel its parameter is loaded from",
    "max": _reduced("ct.reduce_max(tile, axis)"),
    "mean": _reduced("ct.reduce_sum(tile, axis)"),
    "min": _reduced("ct.reduce_min(tile, axis)"),
    "nbytes": "tensor.num_bytes",
    "numel": "tensor.size",
    "numpy": READ,
    "permute": "tensor.transpose(axes)",
    "ravel": "tensor.reshape(-1)",
    "store": "api.memcpy(tensor, source) on the host; a kernel stores to its Mut parameters",
    "stride": "tensor.strides",
    "sum": _reduced("ct.reduce_sum(tile, axis)"),
    "sync": "nothing: operations are run; a tensor is there, and what uses it is ordered behind what computes it",
    "to": "tensor.to_device(device), or api.convert(tensor, dtype)",
    "unpartition": "nothing: it is a tensor and no partition",
    "zero_": "api.fill(tensor, 0)",
}
"""By the name that another library has for it."""

LANGUAGE: dict[str, str] = {
    "Array": "Tensor for what a kernel reads, Mut for what it writes",
    "Constant": "Const",
    "ConstInt": "Const",
    "Config": "Autotuner(...).configs(BM=[64, 128]), of cutile.tune",
    "autotune": "cutile.tune.Autotuner(...)",
    "constexpr": "Const",
    "do_bench": "cutile.bench.do_bench(op)",
    "function": "nothing: a kernel calls plain Python functions",
    "jit": "@ct.entry",
    "kernel": "@ct.entry",
    "next_power_of_2": "the number itself: tiles need no powers of two",
    "synchronize": "op.sync(), await op, or stream.synchronize()",
    "testing": "cutile.bench.do_bench(op)",
}
"""By the name of what declares or launches kernels."""

_FROM = "api.from_numpy(array), which takes lists, too"
_JOINED = "api.empty(shape, dtype) and api.memcpy(whole[...].mut, part) for each"

FUNCTIONS: dict[str, str] = {
    "array": _FROM,
    "as_tensor": _FROM,
    "asarray": "api.from_foreign(array), which shares its memory, or " + _FROM,
    "asnumpy": READ,
    "cat": _JOINED,
    "concatenate": _JOINED,
    "copy": "api.dup(tensor)",
    "empty_like": "api.empty(tensor.shape, tensor.dtype)",
    "from_torch": "api.from_dlpack(tensor), or pass it to a kernel as it is",
    "full_like": "api.full(value, tensor.shape, tensor.dtype)",
    "normal": "api.randn(mean, std, shape)",
    "ones_like": "api.ones(tensor.shape, tensor.dtype)",
    "randint": "api.from_numpy(rng.integers(low, high, shape))",
    "random": "api.rand(shape)",
    "stack": _JOINED,
    "tensor": _FROM,
    "uniform": "api.rand(shape)",
    "zeros_like": "api.zeros(tensor.shape, tensor.dtype)",
}
"""By the name of a function, as of a module."""
