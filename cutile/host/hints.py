"""Remedies for names and uses of NumPy, torch and CuPy that a tensor refuses.

A tensor is a handle, equal to itself alone: its values are on the device. Reading them waits for the device, so no
conversion is implicit. Computing with them takes a kernel. Each error names the code to write in place of the refused
one. The refusing methods are hidden from type checkers, which so reject the same code. The remedies for kernels are in
`cutile/frontend/elsewhere.py`.
"""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cuda_async import NotReadyError
from cuda_async.core.lease import current_holder
from cuda_async.hints import RUNTIME
from cutile.errors import ArgumentTypeError

__all__ = ("ARGUMENTS", "FUNCTIONS", "KERNEL", "LANGUAGE", "READ", "TENSORS", "RefusesValues")

READ = "tensor.numpy(), or await tensor.to_numpy()"
KERNEL = "a kernel (@cutile.entry), or compute with what to_numpy() gives"

_SAVE = "np.save(path, tensor.numpy()), which api.from_numpy(np.load(path)) reads"


def _reduction(operation: str) -> str:
    return f"a kernel with {operation}, or compute with what to_numpy() gives"


TENSORS: dict[str, str] = {
    "argmax": _reduction("ct.argmax(tile, axis)"),
    "astype": "api.convert(tensor, dtype)",
    "block_until_ready": "sync(), or await, of the operation that makes it",
    "clone": "tensor.dup()",
    "contiguous": "tensor.dup(), whose result is",
    "copy_": "api.memcpy(tensor, source)",
    "cpu": READ,
    "cuda": "tensor.to_device('cuda')",
    "cumsum": "api.cumsum(tensor)",
    "data_ptr": "tensor.device_pointer()",
    "dim": "tensor.ndim",
    "fill": "api.fill(tensor, value)",
    "fill_": "api.fill(tensor, value)",
    "flatten": "tensor.reshape(-1)",
    "float": "api.convert(tensor, 'f32')",
    "get": READ,
    "half": "api.convert(tensor, 'f16')",
    "itemsize": "tensor.dtype.numpy.itemsize",
    "load": "tensor.to_numpy() on the host; in a kernel its parameter is loaded from",
    "max": _reduction("ct.reduce_max(tile, axis)"),
    "mean": _reduction("ct.reduce_sum(tile, axis)"),
    "min": _reduction("ct.reduce_min(tile, axis)"),
    "nbytes": "tensor.num_bytes",
    "numel": "tensor.size",
    "permute": "tensor.transpose(axes)",
    "ravel": "tensor.reshape(-1)",
    "save": _SAVE,
    "sort": _reduction("ct.sort(tile, axis)"),
    "squeeze": "tensor.reshape(shape)",
    "std": _reduction("ct.var(tile, axis)"),
    "store": "api.memcpy(tensor, source) on the host; a kernel stores to its Mut parameters",
    "stride": "tensor.strides",
    "sum": _reduction("ct.reduce_sum(tile, axis)"),
    "swapaxes": "tensor.transpose(axes)",
    "sync": "nothing: operations are run; a tensor is there, and what uses it is ordered behind what computes it",
    "to": "tensor.to_device(device), or api.convert(tensor, dtype)",
    "tofile": _SAVE,
    "unpartition": "nothing: it is a tensor and no partition",
    "unsqueeze": "tensor[None]",
    "var": _reduction("ct.var(tile, axis)"),
    "zero_": "api.fill(tensor, 0)",
}
"""What to write for a tensor's attribute of another library, by its name there."""

LANGUAGE: dict[str, str] = {
    "Array": "Tensor for what a kernel reads, Mut for what it writes",
    "Constant": "Const",
    "ConstInt": "Const",
    "Config": "Autotuner(...).configs(BM=[64, 128]), of cutile.tune",
    "constexpr": "Const",
    "do_bench": "cutile.bench.do_bench(op)",
    "function": "nothing: a kernel calls plain Python functions",
    "jit": "@ct.entry",
    "kernel": "@ct.entry",
    "next_power_of_2": "the number itself: tiles need no powers of two",
    "synchronize": RUNTIME["synchronize"],
    "testing": "cutile.bench.do_bench(op)",
}
"""What to write for a name of another kernel language, by that name."""

_FROM_NUMPY = "api.from_numpy(array), which takes lists, too"
_JOIN = "api.empty(shape, dtype) and api.memcpy(whole[...].mut, part) for each"

FUNCTIONS: dict[str, str] = {
    "array": _FROM_NUMPY,
    "as_tensor": _FROM_NUMPY,
    "asarray": "api.from_foreign(array), which shares its memory, or " + _FROM_NUMPY,
    "asnumpy": READ,
    "cat": _JOIN,
    "concatenate": _JOIN,
    "copy": "api.dup(tensor)",
    "dot": "a kernel with ct.mma; kernels.gemm.matmul(x, y) is one",
    "empty_like": "api.empty(tensor.shape, tensor.dtype)",
    "from_torch": "api.from_dlpack(tensor), or pass it to a kernel as it is",
    "frombuffer": "api.from_numpy(np.frombuffer(buffer, dtype))",
    "fromfile": "api.from_numpy(np.fromfile(path, dtype))",
    "full_like": "api.full(value, tensor.shape, tensor.dtype)",
    "load": "api.from_numpy(np.load(path))",
    "matmul": "a kernel with ct.mma; kernels.gemm.matmul(x, y) is one",
    "max": _reduction("ct.reduce_max(tile, axis)"),
    "mean": _reduction("ct.mean(tile, axis)"),
    "min": _reduction("ct.reduce_min(tile, axis)"),
    "normal": "api.randn(mean, std, shape)",
    "ones_like": "api.ones(tensor.shape, tensor.dtype)",
    "randint": "api.from_numpy(rng.integers(low, high, shape))",
    "random": "api.rand(shape)",
    "save": _SAVE,
    "sort": _reduction("ct.sort(tile, axis)"),
    "stack": _JOIN,
    "sum": _reduction("ct.reduce_sum(tile, axis)"),
    "tensor": _FROM_NUMPY,
    "to_numpy": READ,
    "uniform": "api.rand(shape)",
    "where": _reduction("ct.select(condition, x, y)"),
    "zeros_like": "api.zeros(tensor.shape, tensor.dtype)",
}
"""What to write for a function of another library's module, by its name."""

_COUNTING = "it counts from 0; write api.from_numpy(np.arange(2, 8)), or in a kernel ct.iota(shape, dtype, start)"
ARGUMENTS: dict[str, str] = {
    "copy": "leave it out: the memory of the host is copied",
    "device": "an op runs where a stream or a with block says: op.sync_on(stream), or with Device(0): op.sync()",
    "end": _COUNTING,
    "fill_value": "it is called value, and comes first",
    "order": "leave it out: tensors are row-major",
    "out": "write api.memcpy(out, tensor)",
    "pin_memory": "leave it out: copies of the host's memory are staged",
    "requires_grad": "leave it out: nothing is differentiated here",
    "size": "it is called shape",
    "start": _COUNTING,
    "step": _COUNTING,
    "stop": _COUNTING,
    "stream": "an op runs where it is told to: op.sync_on(stream)",
}
"""What to write for an argument of another library's functions that make tensors, by its name there."""

_METADATA: dict[Any, str] = {np.shape: "shape", np.ndim: "ndim", np.size: "size"}
_IN_KERNELS = {
    **dict.fromkeys(("add", "sum"), " with + or ct.reduce_sum(tile, axis)"),
    "maximum": " with ct.max_tile(x, y) or ct.reduce_max(tile, axis)",
    "minimum": " with ct.min_tile(x, y) or ct.reduce_min(tile, axis)",
    **dict.fromkeys(("dot", "matmul"), " with ct.mma; kernels.gemm.matmul(x, y) is one"),
}


class RefusesValues:
    """The part of `Tensor` that refuses to be its values."""

    __slots__ = ()

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        self._no_values("a NumPy array")

    def __float__(self) -> NoReturn:
        self._no_values("a float")

    def __int__(self) -> NoReturn:
        self._no_values("an int")

    def item(self) -> NoReturn:
        """Not here: raises TypeError, and says how to read values."""
        self._no_values("a number")

    def tolist(self) -> NoReturn:
        """Not here: raises TypeError, and says how to read values."""
        self._no_values("a list")

    if not TYPE_CHECKING:

        def __bool__(self) -> NoReturn:  # noqa: PLE0304
            self._no_values("a bool")

        def __contains__(self, item: object) -> NoReturn:
            self._no_values("something to search")

        def __format__(self, how: str) -> str:
            if how:
                self._no_values("a number to format")
            return repr(self)

        def __reduce_ex__(self, protocol: object) -> NoReturn:
            raise ArgumentTypeError(
                f"{self!r} is memory of a device, which Python neither pickles nor copies: write "
                "tensor.to_numpy().sync(), or tensor.dup() for a copy on the device"
            )

        def __setitem__(self, key: object, value: object) -> NoReturn:
            raise ArgumentTypeError(
                f"elements of {self!r} are not assigned to on the host: write api.fill(tensor[...].mut, value) or "
                "api.memcpy(tensor[...].mut, source), or a kernel"
            )

        def _no_arithmetic(self, *others: object) -> NoReturn:
            raise ArgumentTypeError(f"{self!r} is not computed with on the host: write {KERNEL}")

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _no_arithmetic
        __matmul__ = __rmatmul__ = __and__ = __or__ = __xor__ = __invert__ = _no_arithmetic
        __lt__ = __le__ = __gt__ = __ge__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_arithmetic
        __divmod__ = __rdivmod__ = __round__ = __rand__ = __ror__ = __rxor__ = __complex__ = _no_arithmetic

        def __array_ufunc__(self, function: Any, method: str, *inputs: object, **more: object) -> NoReturn:
            self._no_numpy(function)

        def __array_function__(self, function: Any, types: object, inputs: Any, more: Any) -> object:
            if function in _METADATA and len(inputs) == 1 and not more:  # these functions read no values
                return getattr(self, _METADATA[function])
            self._no_numpy(function)

        def _no_numpy(self, function: Any) -> NoReturn:
            name = function.__name__
            if current_holder() is not None:
                self._no_values(f"an argument of np.{name}")
            raise ArgumentTypeError(
                f"np.{name} does not take {self!r}, whose values are the device's: write np.{name} of "
                f"tensor.to_numpy().sync(), or a kernel (@cutile.entry){_IN_KERNELS.get(name, '')}"
            )

        def __await__(self) -> NoReturn:
            raise ArgumentTypeError(
                f"{self!r} is not awaited: it is there, since the operation that makes it was run; write "
                "await tensor.to_numpy() for its values"
            )

        def __eq__(self, other: object) -> bool:
            if isinstance(other, Number) or (hasattr(other, "__array__") and not isinstance(other, RefusesValues)):
                raise ArgumentTypeError(
                    f"{self!r} is not compared with {type(other).__name__} by its values, which are the device's: "
                    f"write {KERNEL}; a tensor is equal to itself alone"
                )
            return NotImplemented  # Python then compares identities

        __hash__ = object.__hash__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # protocols: if a property of ours raised, this raises the property's own error
                object.__getattribute__(self, name)
            remedy = f"; write {TENSORS[name]}" if name in TENSORS else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{remedy}", name=name, obj=self
            )

    def _no_values(self, what: str) -> NoReturn:
        if current_holder() is not None:
            raise NotReadyError(
                f"{self!r} was read as {what} inside a function given to then(), map() or inspect(): it is called at "
                "submission, before the device has computed the values. Read them after sync() or await."
            )
        raise ArgumentTypeError(
            f"{self!r} does not turn into {what} by itself, since that waits for the device: write {READ}"
        )
