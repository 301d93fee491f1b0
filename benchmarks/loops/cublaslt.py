# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""The fastest of the algorithms that cuBLASLt proposes for a product, called by ctypes; torch takes the first one."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

PROPOSALS, WORKSPACE = 64, 64 << 20
COMPUTE_F32, R_F32, R_BF16 = 68, 0, 14
WORKSPACE_ATTRIBUTE = 1


class Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def library() -> ctypes.CDLL:
    """cuBLASLt as torch has loaded it."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcublasLt.so" in line))


def fastest(
    torch: Any, lefts: Sequence[Any], rights: Sequence[Any], rounds: int = 5, repeats: int = 5
) -> Callable[..., Any]:
    """A call `f(x, w, out=)` of the algorithm that is fastest on these contiguous bf16 matrices, measured now."""
    _ = lefts[0] @ rights[0]  # loads the library
    lt, (m, k), n = library(), lefts[0].shape, rights[0].shape[1]

    def checked(status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLASLt: status {status}")

    def made(name: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        checked(getattr(lt, name)(ctypes.byref(handle), *arguments))
        return handle

    # cuBLASLt is column-major: row-major matrices are transposed there.
    def layout(rows: int, columns: int) -> ctypes.c_void_p:
        return made(
            "cublasLtMatrixLayoutCreate", R_BF16, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        )

    handle, operation = made("cublasLtCreate"), made("cublasLtMatmulDescCreate", COMPUTE_F32, R_F32)
    left, right, result = layout(n, k), layout(k, m), layout(n, m)
    preference, size = made("cublasLtMatmulPreferenceCreate"), ctypes.c_size_t(WORKSPACE)
    checked(
        lt.cublasLtMatmulPreferenceSetAttribute(
            preference, WORKSPACE_ATTRIBUTE, ctypes.byref(size), ctypes.c_size_t(ctypes.sizeof(size))
        )
    )
    proposals, count = (Proposal * PROPOSALS)(), ctypes.c_int()
    checked(
        lt.cublasLtMatmulAlgoGetHeuristic(
            handle, operation, left, right, result, result, preference, PROPOSALS, proposals, ctypes.byref(count)
        )
    )
    workspace = torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)
    result_of_trials = torch.empty(m, n, device="cuda", dtype=lefts[0].dtype)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)

    def call(x: Any, w: Any, *, out: Any, proposal: Proposal) -> None:
        addresses = [ctypes.c_void_p(each.data_ptr()) for each in (w, x, out)]
        of_left, of_right, of_result = addresses
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        checked(
            lt.cublasLtMatmul(
                *(handle, operation, ctypes.byref(one), of_left, left, of_right, right, ctypes.byref(zero)),
                *(of_result, result, of_result, result, ctypes.byref(proposal.algorithm)),
                *(ctypes.c_void_p(workspace.data_ptr()), size, stream),
            )
        )

    def seconds(proposal: Proposal) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            for x, w in zip(lefts, rights, strict=True):
                call(x, w, out=result_of_trials, proposal=proposal)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    able = [each for each in proposals[: count.value] if each.state == 0 and each.workspace <= WORKSPACE]
    times: dict[int, list[float]] = {place: [] for place in range(len(able))}
    for _ in range(rounds):  # in turns, so that all of them meet the same clocks
        for place, proposal in enumerate(able):
            times[place].append(seconds(proposal))
    chosen = able[min(times, key=lambda place: statistics.median(times[place]))]
    return partial(call, proposal=chosen)
