# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (the peers ship no types)
"""The peers of our products, if installed: cuBLAS through torch, Triton and CuPy on a GPU, NumPy on the CPU.

Each computes the same rounds on the same inputs, into outputs of its own, and is timed by events of its own library.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.products.cases import Product
from benchmarks.products.operands import Operands
from cuda_async import Device, Stream
from cutile.bench import Arm

PEERS = {"cuda": ("torch", "triton", "cupy"), "host": ("numpy",)}
"""The peers, by kind of device."""


class AbsentError(Exception):
    """A peer does not take part in a case; the message says why."""


def installed(device: Device) -> list[str]:
    """The installed peers for a device."""
    found = [name for name in PEERS.get(device.kind, ()) if importlib.util.find_spec(name)]
    if device.kind == "cuda" and "torch" in found and not importlib.import_module("torch").cuda.is_available():
        found = [name for name in found if name not in ("torch", "triton")]
    return found


def peer(name: str, case: Product, sets: Sequence[Operands], stream: Stream) -> Arm:
    """The arm of a peer for a case.

    Raises:
        AbsentError: it does not compute this case.
    """
    makers: dict[str, Callable[..., Arm]] = {
        "torch": _torch,
        "triton": _triton,
        "cupy": _cupy,
        "numpy": lambda case, sets: NumpyArm(case, sets, stream),
    }
    return makers[name](case, sets)


class NumpyArm:
    """`np.matmul` into outputs made before, with NumPy's own threads."""

    name = "numpy"

    def __init__(self, case: Product, sets: Sequence[Operands], stream: Stream) -> None:
        if case.operand != "f32":
            raise AbsentError(f"NumPy has no fast product of {case.operand}")
        inputs = [(each.x.to_numpy().sync_on(stream), each.y.to_numpy().sync_on(stream)) for each in sets]
        self._sets = [(x, y, np.empty((*x.shape[:-1], y.shape[-1]), x.dtype)) for x, y in inputs]

    def run(self, repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            for x, y, out in self._sets:
                np.matmul(x, y, out=out)
        return time.perf_counter() - start


def recorded(torch: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    """A call of torch, recorded as a CUDA graph. Each replay returns the object that the recorded call returned."""
    with torch.cuda.stream(torch.cuda.Stream()):
        call()  # what the libraries set up at their first call cannot be recorded
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may compile and allocate meanwhile
        result = call()

    def replayed(_: Callable[[], Any] = call) -> Any:  # keeps the call's tensors alive: a graph has only addresses
        graph.replay()
        return result

    return replayed


class _Events:
    """An arm that is timed by two events of its library."""

    def __init__(self, name: str, calls: Sequence[Callable[[], object]], library: Any, *, graph: bool) -> None:
        self.name = name
        self._library = library
        self._of_torch = library.__name__ == "torch"
        options = {"enable_timing": True} if self._of_torch else {}
        self._start, self._end = library.cuda.Event(**options), library.cuda.Event(**options)
        self._calls = [recorded(library, lambda: [call() for call in calls])] if graph else list(calls)

    def run(self, repeats: int) -> float:
        self._start.record()
        for _ in range(repeats):
            for call in self._calls:
                call()
        self._end.record()
        self._end.synchronize()
        if self._of_torch:
            return self._start.elapsed_time(self._end) / 1e3
        return self._library.cuda.get_elapsed_time(self._start, self._end) / 1e3


def torch_tensor(tensor: Any) -> Any:
    """Our tensor as a torch tensor over the same memory; element types that DLPack lacks become integers."""
    torch = importlib.import_module("torch")
    if tensor.dtype.name == "f8e4m3fn":
        return torch.from_dlpack(tensor.reinterpret("u8", tensor.shape)).view(torch.float8_e4m3fn)
    return torch.from_dlpack(tensor)


def _torch_sets(case: Product, sets: Sequence[Operands]) -> list[tuple[Any, Any]]:
    made = [(torch_tensor(each.x), torch_tensor(each.stored)) for each in sets]
    return [(x, y if case.stored == "kn" else y.transpose(-1, -2)) for x, y in made]


def _torch(case: Product, sets: Sequence[Operands]) -> Arm:
    """cuBLAS and cuBLASLt, as torch calls them."""
    torch = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = case.operand == "tf32"
    calls: list[Callable[[], object]] = []
    for x, y in _torch_sets(case, sets):
        if case.operand == "int8":
            calls.append(lambda x=x, y=y: torch._int_mm(x, y))
        elif case.operand == "fp8":
            one = torch.ones((), device="cuda")
            calls.append(
                lambda x=x, y=y, one=one: torch._scaled_mm(
                    x, y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=case.fast
                )
            )
        else:
            out = x.new_empty((*x.shape[:-1], y.shape[-1]))
            calls.append(lambda x=x, y=y, out=out: torch.matmul(x, y, out=out))
    return _Events("torch", calls, torch, graph=case.graph)


def _triton(case: Product, sets: Sequence[Operands]) -> Arm:
    """The product of Triton's tutorial, with its tile for large products."""
    if case.batch or case.operand not in ("bf16", "f16"):
        raise AbsentError("the Triton kernel multiplies matrices of bf16 and f16")
    launcher = importlib.import_module("benchmarks.products.triton_gemm").launcher
    torch = importlib.import_module("torch")
    calls = [launcher(x, y, x.new_empty((x.shape[0], y.shape[1]))) for x, y in _torch_sets(case, sets)]
    return _Events("triton", calls, torch, graph=case.graph)


def _cupy(case: Product, sets: Sequence[Operands]) -> Arm:
    """cuBLAS, as CuPy calls it."""
    if case.operand not in ("f16", "f32") or case.graph:
        raise AbsentError("CuPy multiplies f16 and f32, and is not recorded in graphs here")
    cupy = importlib.import_module("cupy")
    calls: list[Callable[[], object]] = []
    for each in sets:
        x, y = cupy.from_dlpack(each.x), cupy.from_dlpack(each.stored)
        if case.stored == "nk":
            y = y.swapaxes(-1, -2)
        out = cupy.empty((*x.shape[:-1], y.shape[-1]), x.dtype)
        calls.append(lambda x=x, y=y, out=out: cupy.matmul(x, y, out=out))
    return _Events("cupy", calls, cupy, graph=False)
