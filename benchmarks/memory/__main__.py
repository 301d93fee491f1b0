# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch ships no types that it needs)
"""Kernels that move bytes, beside copies of as many bytes and beside torch. Needs a GPU and torch.

    python -m benchmarks.memory [--output docs/benchmarks/memory/nvidia_h200.json] [--cases 'softmax*'] [--peers ...]
    python -m benchmarks.memory --quick             # beside the copy alone, in less than a minute

What is counted are the bytes that have to be read and written once. Work that writes is compared with a copy of as
many bytes in all; work that reads, with the sum of an array of as many. All of them run as graphs, over operands of 256
MB or more together, one set after the other, so that no cache has them; ours and a peer take turns. Before that each
kernel computes once into poisoned outputs, and all of it is compared with float64.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.memory import kernels
from benchmarks.memory.case import Array, Case
from benchmarks.memory.cases import CASES
from benchmarks.products.peers import recorded
from benchmarks.record import machine, missing, sensors, write
from cuda_async import CudaGraph, Device
from cutile import CutileError, KernelOp, Tensor, api, f8e4m3fn, f32
from cutile.bench import MIN_PAIRS, Budget, DeviceArm, compare
from cutile.compile.ahead import Builders

COLD_BYTES = 256 << 20
"""The least bytes of all operands of a graph; no cache holds as many."""

READING_PIECE = 8192
"""Elements that a tile block adds up in the kernel that measures reading."""
COPY_UNIT = 512
"""The size of a copy is a multiple of these bytes: some other sizes are an eighth slower."""


class OurArm:
    """Our launches over some sets of operands, recorded as a graph."""

    def __init__(self, name: str, sets: Sequence[Callable[[], Any]], device: Device) -> None:
        self.name = name
        self._sets = len(sets)
        stream = device.new_stream()
        with CudaGraph.scope(stream) as scope:
            for launches in sets:
                for op in launches():
                    scope.record(op)
        self.graph = scope.graph
        self._arm = DeviceArm(self.graph, stream, clear_l2=False)

    def run(self, repeats: int) -> float:
        """Replay `repeats` times; return the seconds of the device, for one set each."""
        return self._arm.run(repeats) / self._sets

    def close(self) -> None:
        """Let go of the operands."""
        self.graph.close()


class TorchArm:
    """Calls of torch over some sets of operands, recorded as a graph."""

    def __init__(self, torch: Any, name: str, sets: Sequence[Callable[[], Any]]) -> None:
        self.name = name
        self._sets = len(sets)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The results of all sets are kept, so that each set writes memory of its own.
        self._replay: Any = recorded(torch, lambda: [call() for call in sets])

    def run(self, repeats: int) -> float:
        """Replay `repeats` times; return the seconds of the device, for one set each."""
        self._start.record()
        for _ in range(repeats):
            self._replay()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / 1e3 / self._sets

    def close(self) -> None:
        """Let go of the operands."""
        self._replay = None


# -- operands -------------------------------------------------------------------------------------


def dtype_of(torch: Any, array: Array) -> Any:
    """torch's name of a dtype."""
    return {
        "f32": torch.float32, "bf16": torch.bfloat16, "f8e4m3fn": torch.float8_e4m3fn, "i32": torch.int32,
        "u64": torch.uint64,
    }[str(array.dtype)]  # fmt: skip


def drawn(torch: Any, array: Array) -> Any:
    """Random numbers."""
    dtype = dtype_of(torch, array)
    if array.below:
        return torch.randint(0, array.below, array.shape, device="cuda", dtype=dtype)
    if array.drawn == "positive":
        return torch.rand(array.shape, device="cuda", dtype=dtype) + 1
    if array.stride:
        return torch.randn((array.shape[0], array.stride), device="cuda", dtype=dtype)[:, : array.shape[1]]
    return torch.randn(array.shape, device="cuda", dtype=dtype)


def poisoned(torch: Any, array: Array, adds: bool) -> Any:
    """A poisoned output: NaN, or -1 for integers; 0 if the kernel adds to it."""
    whole = dtype_of(torch, array)
    value = 0 if adds or not whole.is_signed else -1 if array.below or not whole.is_floating_point else float("nan")
    return torch.full(array.shape, value, device="cuda", dtype=whole)


def tensor_of(torch: Any, tensor: Any) -> Tensor:
    """The same memory, as our tensor."""
    if tensor.dtype is torch.float8_e4m3fn:  # DLPack of older versions has no code for it
        return api.from_dlpack(tensor.view(torch.uint8)).reinterpret(f8e4m3fn, tuple(tensor.shape))
    return api.from_dlpack(tensor)


def exact_of(torch: Any, case: Case, ins: Sequence[Any]) -> Any:
    """The expected outputs, in float64 or int64."""
    exact = case.exact(torch, *(each.double() if each.is_floating_point() else each.long() for each in ins))
    return exact if isinstance(exact, tuple) else (exact,)


def judge(out: Any, exact: Any, allowed: float) -> tuple[float, str]:
    """The error of all elements relative to the norm, and the fault, "" if there is none."""
    if exact.is_floating_point():
        error = float((out.double() - exact).norm() / exact.norm())
    else:
        error = float((out.long() != exact).sum())
    return error, "" if error <= allowed else f"error {error:.2e}, {allowed:.1e} allowed"


# -- a case ---------------------------------------------------------------------------------------


class Problem:
    """A case's operands on the GPU, and the arms that compute with them."""

    def __init__(self, torch: Any, case: Case, device: Device, sets: int = 0) -> None:
        self.torch, self.case, self.device = torch, case, device
        cold = -(-COLD_BYTES // max(1, case.nbytes)) if case.many == 1 else 1
        count = sets or max(case.many, cold)
        self.ins = [[drawn(torch, each) for each in case.ins] for _ in range(count)]
        outs = (*case.outs, *case.scratch)
        self.outs = [[poisoned(torch, each, case.adds) for each in outs] for _ in range(count)]
        torch.cuda.synchronize()
        self._tensors = [
            ([tensor_of(torch, each) for each in outs], [tensor_of(torch, each) for each in ins])
            for outs, ins in zip(self.outs, self.ins, strict=True)
        ]

    def check(self) -> tuple[float, str]:
        """Compute once, and compare with the expected outputs."""
        stream = self.device.new_stream()
        outs, ins = self._tensors[0]
        for op in self.case.ops(outs, ins):
            op.sync_on(stream)
        verdicts: list[tuple[float, str]] = []
        for out, exact, allowed in zip(
            self.outs[0], exact_of(self.torch, self.case, self.ins[0]), self.case.errors, strict=False
        ):
            verdicts.append(judge(out.reshape(exact.shape), exact, allowed))
        return max(error for error, _ in verdicts), "; ".join(wrong for _, wrong in verdicts if wrong)

    def ours(self) -> OurArm:
        """Our launches."""
        return OurArm("cutile", [lambda t=t: self.case.ops(*t) for t in self._tensors], self.device)

    def yardstick(self) -> OurArm | TorchArm:
        """The yardstick: the fastest copy of as many bytes, or the fastest reading of them."""
        nbytes, count, torch = self.case.nbytes, len(self.ins), self.torch
        if not self.case.reads:
            size = -(-nbytes // 2 // COPY_UNIT) * COPY_UNIT
            pairs = [
                [torch.randint(0, 1 << 30, (size // 4,), device="cuda", dtype=torch.int32) for _ in range(2)]
                for _ in range(count)
            ]
            # The driver makes some copies by an engine that is a third slower than a kernel.
            arms = [
                TorchArm(torch, "copy", [lambda p=p, call=call: call(p) for p in pairs])
                for call in (lambda p: p[1].copy_(p[0]), lambda p: torch.bitwise_not(p[0], out=p[1]))
            ]
            times = [min(arm.run(3) for _ in range(3)) / 3 for arm in arms]
            best = times.index(min(times))
            arms[1 - best].close()
            return arms[best]
        pieces = max(1, nbytes // 4 // READING_PIECE)
        arrays = [torch.randn(pieces * READING_PIECE, device="cuda") for _ in range(count)]
        sums = [torch.empty(pieces, device="cuda") for _ in range(count)]
        torch.cuda.synchronize()
        tensors = [(api.from_dlpack(y), api.from_dlpack(x)) for y, x in zip(sums, arrays, strict=True)]
        return OurArm("reading", [lambda y=y, x=x: [_reading(y, x)] for y, x in tensors], self.device)

    def peer(self, name: str) -> TorchArm:
        """torch's call, plain or compiled."""
        torch, call = self.torch, self.case.torch
        assert call is not None, f"{self.case} has no peer in torch"
        if name == "torch.compile":
            torch._dynamo.reset()
            compiled = torch.compile(lambda *ins: call(torch, *ins), dynamic=False)
            return TorchArm(torch, name, [lambda ins=ins: compiled(*ins) for ins in self.ins])
        return TorchArm(torch, name, [lambda ins=ins, call=call: call(torch, *ins) for ins in self.ins])


def _reading(y: Tensor, x: Tensor) -> KernelOp:
    return kernels.piece_sums(y.mut.partition((1,)), x, B=READING_PIECE)


def beside(ours: OurArm, peer: OurArm | TorchArm, nbytes: int, budget: Budget) -> dict[str, Any]:
    """Both in turns."""
    paired = compare(ours, peer, budget)
    return {
        "ours_s": paired.first_s,
        "theirs_s": paired.second_s,
        "ours_gbytes": nbytes / paired.first_s / 1e9,
        "theirs_gbytes": nbytes / paired.second_s / 1e9,
        "ratio": asdict(paired.ratio),
        "repeats": list(paired.repeats),
    }


def measured(
    torch: Any, case: Case, device: Device, peers: Sequence[str], turn_ms: float, pairs: int
) -> dict[str, Any]:
    """One case: checked, then timed beside the yardstick and its peers."""
    record: dict[str, Any] = {"name": case.name, "bytes": case.nbytes, "goal": case.goal, "wrong": "", "peers": {}}
    problem = Problem(torch, case, device)
    try:
        record["error"], record["wrong"] = problem.check()
        if record["wrong"]:
            return record
        ours = problem.ours()
    except CutileError as error:  # the other cases are measured all the same
        return record | {"wrong": f"it does not run: {error}"}
    budget = Budget(turn_ms * 4 / 1e3, 2 * pairs * turn_ms / 1e3, pairs)
    makers: list[Callable[[], Any]] = [problem.yardstick]
    if case.torch is not None:
        makers += [lambda name=name: problem.peer(name) for name in peers]
    for make in makers:
        peer = make()
        record["peers"][peer.name] = beside(ours, peer, case.nbytes, budget)
        peer.close()
    ours.close()
    return record


def line(record: dict[str, Any]) -> str:
    """One line of the table; a ratio above 1 is faster than the peer."""
    if record["wrong"]:
        return f"{record['name']:42} WRONG: {record['wrong'][:600]}"
    rates: list[str] = []
    for name, found in record["peers"].items():
        ratio = found["ratio"]
        rates.append(f"{name} {ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]")
    first = next(iter(record["peers"].values()))
    rate = f"{first['ours_s'] * 1e6:9.1f} us {first['ours_gbytes']:6.0f} GB/s"
    return f"{record['name']:42} {rate}  goal {record['goal']:.2f}  {'  '.join(rates)}  error {record['error']:.1e}"


# -- ahead ----------------------------------------------------------------------------------------


def compile_ahead(cases: Sequence[Case], device: Device) -> None:
    """Compile all kernels in parallel, by other processes, into the disk cache."""
    requests: list[Any] = []
    for case in cases:
        outs = [api.meta(each.shape, each.dtype, device=device) for each in (*case.outs, *case.scratch)]
        ins = [api.meta(each.shape, each.dtype, device=device) for each in case.ins]
        for op in case.ops(outs, ins):
            if isinstance(op, KernelOp):
                requests.append(op.request(device))
            op.discard()
    reading = _reading(*(api.meta((n,), f32, device=device) for n in (1 << 10, READING_PIECE << 10)))
    requests.append(reading.request(device))
    reading.discard()
    with Builders() as builders:
        builders.compile([each for each in requests if each is not None])


# -- the command ----------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        SystemExit: it is wrong, with code 2.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the figures go, as JSON")
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="these alone, such as 'softmax*,sum*'")
    parser.add_argument("--peers", default="torch,torch.compile", help="beside the copy; empty for none")
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help=f"turns of each (default {MIN_PAIRS})")
    parser.add_argument("--turn", type=float, default=10, metavar="MS", help="milliseconds of a turn")
    parser.add_argument("--quick", action="store_true", help="the copy alone, in 7 turns of 3 ms")
    options = parser.parse_args(arguments)
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs {options.pairs}: expected {MIN_PAIRS} or more; fewer give no interval to go by")
    if options.quick:
        options.peers, options.pairs, options.turn = "", 7, 3
    patterns = options.cases.split(",")
    options.chosen = [case for case in CASES if any(fnmatch(case.name, each) for each in patterns)]
    options.others = [each for each in options.peers.split(",") if each]
    if not options.chosen:
        parser.error(f"--cases {options.cases}: no such case; there are {', '.join(case.name for case in CASES)}")
    if unknown := set(options.others) - {"torch", "torch.compile"}:
        parser.error(f"--peers: expected torch, torch.compile, got {', '.join(sorted(unknown))}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write; return 1 when a result was wrong, 2 when nothing can run."""
    options = parse(arguments)
    if reason := missing():
        print(f"benchmarks.memory: {reason}", file=sys.stderr)
        return 2
    torch: Any = importlib.import_module("torch")
    torch.seed()
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    with Device(0) as device:
        record = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "command": f"python -m benchmarks.memory {' '.join(sys.argv[1:])}".rstrip(),
            **machine(device),
            "cuda_of_torch": torch.version.cuda,
            "inputs": "drawn afresh; outputs poisoned; every element judged before it is timed",
            "pairs": options.pairs,
            "rows": rows,
        }
        compile_ahead(options.chosen, device)
        print(f"{device.name} ({device.arch}); compiled after {time.perf_counter() - begin:.1f} s", flush=True)
        for case in options.chosen:
            rows.append(measured(torch, case, device, options.others, options.turn, options.pairs))
            print(line(rows[-1]), flush=True)
            if torch.cuda.memory_reserved() > 32 << 30:
                torch.cuda.empty_cache()
            record["sensors"] = sensors(device) if case is options.chosen[-1] else {}
            if options.output is not None:  # after each case, so that an interrupted run is not lost
                write(options.output, record)
        print(f"{time.perf_counter() - begin:.1f} s")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
