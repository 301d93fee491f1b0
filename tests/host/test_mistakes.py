"""Mistakes on the host's side, and what answers them: an exception of the project, of the builtin kind that one would
catch, which names what it is about and says what to write. Everything stays usable."""

# Most of these lines a type checker refuses, as it should: that is what they are.
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnnecessaryComparison=false, reportAttributeAccessIssue=false

from __future__ import annotations

import copy
import math
import operator
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import (
    CudaGraph,
    Device,
    DeviceError,
    StreamPoolRoundRobin,
    UnrunOperationWarning,
    set_default_device,
    value,
    zip,
)
from cuda_async.testing import SimDriver, wait_all_idle
from cutile import api, f32, i32, u8
from cutile.errors import CutileError
from cutile.host.unsafe import borrow_raw_parts
from kernels.gemm import gemm, matmul
from kernels.saxpy import saxpy

pytestmark = pytest.mark.filterwarnings(f"ignore::{UnrunOperationWarning.__module__}.UnrunOperationWarning")


@pytest.fixture(scope="module")
def host() -> Iterator[Device]:
    """The CPU, waited for once: after each of so many tests that would take most of their time."""
    device = Device.host()
    with device:
        yield device
    wait_all_idle(device)


class Bench:
    """What the mistakes are made with."""

    def __init__(self, device: Device) -> None:
        self.stream = device.new_stream()
        self.x = api.arange(8, f32).sync()
        self.y = api.ones((8,), f32).sync()
        self.square = api.zeros((4, 8), f32).sync()
        self.other = api.zeros((4, 8), f32).sync()
        self.masked = np.ma.masked_array([1.0, 2.0], [False, True])

    def op(self) -> Any:
        return api.zeros((4, 8))

    def launch(self, **more: Any) -> Any:
        return saxpy(self.y.mut.partition((4,)), 2.0, self.x, **more)

    def closed(self) -> CudaGraph[int]:
        graph = value(1).graph_on(self.stream)
        graph.close()
        return graph


class Tracer:
    """What stands for an array while JAX traces a function."""

    def __dlpack__(self) -> Any:
        raise TypeError("the library's own words")

    __dlpack_device__ = __array__ = __dlpack__


Tracer.__module__ = "jax._src.core"


@dataclass(frozen=True)
class Mistake:
    """What is written, the builtin that one would catch, what the message names, and what it says to do."""

    make: Callable[[Any], object]
    kind: type[Exception]
    names: str
    remedy: str


MISTAKES: dict[str, Mistake] = {
    "await a tensor": Mistake(
        lambda b: b.x.__await__(), TypeError, "Tensor.* is not awaited", r"await tensor\.to_numpy"
    ),
    "a borrow to be written": Mistake(
        lambda b: saxpy(b.y.mut, 2.0, b.x), TypeError, "'y' .* got tensor.mut", r"tensor\.mut\.partition\(\(64,\)\)"
    ),
    "items of a borrow": Mistake(lambda b: b.x.mut[2:6], TypeError, "mut has no items", r"tensor\[\.\.\.\]\.mut"),
    "exchanged arguments": Mistake(
        lambda b: saxpy(b.y.mut.partition((4,)), np.ones(8), 2.0), TypeError, "'a' must be a scalar", r"\(y, a, x\)"
    ),
    "a number for a tensor": Mistake(
        lambda b: saxpy(b.y.mut.partition((4,)), 1.0, 2.0), TypeError, "'x' must be a tensor", r"\(y, a, x\)"
    ),
    "arguments of a bound launch": Mistake(
        lambda b: b.launch().bind(b.stream)(2.0), TypeError, "no arguments, got", r"bound\.set\(y=\.\.\., a="
    ),
    "no stream": Mistake(lambda b: value(1).sync_on(5), TypeError, "a stream.* got int: 5", r"new_stream\(\)"),
    "no policy": Mistake(lambda b: value(1).schedule(5), TypeError, "a policy.* got int: 5", "StreamPool"),
    "no stream for a graph": Mistake(lambda b: b.op().graph_on(5), TypeError, "a stream.* int", r"new_stream\(\)"),
    "no stream to bind": Mistake(lambda b: b.launch().bind(5), TypeError, "a stream.* int", r"new_stream\(\)"),
    "first of a number": Mistake(lambda b: value(3).first().sync(), TypeError, "first: .* int", "leave .first"),
    "last of a tensor": Mistake(lambda b: b.op().last().sync(), TypeError, "last: .* Tensor", r"leave \.last\(\) out"),
    "unzip of a number": Mistake(lambda b: value(3).unzip(2)[0].sync(), ValueError, "yielded int", "leave"),
    "unzip of how many": Mistake(lambda b: value((1, 2)).unzip(), ValueError, "how many elements", r"say unzip\(n\)"),
    "unzip of three": Mistake(lambda b: zip(value(1), value(2)).unzip(3), ValueError, "yields 2", r"unzip\(2\)"),
    "unzip of three, run": Mistake(lambda b: value((1, 2)).unzip(3)[0].sync(), ValueError, "tuple of 2", r"unzip\(2\)"),
    "unzip of a name": Mistake(lambda b: value((1, 2)).unzip("n"), TypeError, "unzip.'n'.", "1 or more"),
    "a list to zip": Mistake(lambda b: zip([value(1)], 2), TypeError, "zip: .* list", r"zip\(\*ops\)"),
    "then a number": Mistake(lambda b: value(1).then(5), TypeError, "then: .* int", r"\.then\(lambda result"),
    "then no operation": Mistake(lambda b: b.op().then(lambda x: 5).sync(), TypeError, "then: .* int", r"use map\(\)"),
    "map an operation": Mistake(lambda b: b.op().map(api.zeros).sync(), TypeError, "shape|map", r"then\(\)|such as"),
    "map of a partition to be": Mistake(
        lambda b: b.op().partition((2, 2)).map((1, 1), 2),
        TypeError,
        r"map: .*\(1, 1\), 2",
        r"\.map\(lambda result: result\.map\(\(1, 1\), 2\)\)",
    ),
    "run twice": Mistake(
        lambda b: [op := value(1), op.sync(), op.sync()], RuntimeError, "already run", r"\.shared\(\)"
    ),
    "an operation as a bool": Mistake(lambda b: bool(b.op()), TypeError, "zeros made at", r"\.sync\(\).*is not None"),
    "its length": Mistake(lambda b: len(b.op()), TypeError, "no length", r"\.sync\(\), await"),
    "its items": Mistake(lambda b: list(b.op()), TypeError, "no items", r"\.unzip\(\)"),
    "a number in it": Mistake(lambda b: 3 in b.op(), TypeError, "no items", r"\.sync\(\)"),
    "one more": Mistake(lambda b: b.op() + 1, TypeError, "zeros made at .* arithmetic", r"\.sync\(\), await"),
    "one less, turned round": Mistake(lambda b: 1 - b.op(), TypeError, "arithmetic", r"\.sync\(\), await"),
    "compared": Mistake(lambda b: b.op() == 3, TypeError, "comparisons", r"\.sync\(\), await"),
    "ordered": Mistake(lambda b: b.op() < b.op(), TypeError, "comparisons", r"\.sync\(\), await"),
    "rounded": Mistake(lambda b: round(b.op()), TypeError, "no number", r"\.sync\(\), await"),
    "an operation for NumPy": Mistake(lambda b: np.sum(b.op()), TypeError, "no array", r"to_numpy\(\)\.sync\(\)"),
    "an operation as an array": Mistake(lambda b: np.asarray(b.op()), TypeError, "no array", r"to_numpy\(\)\.sync\(\)"),
    "an operation copied": Mistake(lambda b: copy.copy(b.op()), TypeError, "copied", "build it twice"),
    "an operation pickled": Mistake(lambda b: pickle.dumps(b.op()), TypeError, "pickled", r"\.sync\(\), await"),
    "a tensor and a number": Mistake(
        lambda b: b.x == 1, TypeError, r"Tensor\(f32.* with int", "a kernel.*itself alone"
    ),
    "a tensor and an array": Mistake(lambda b: b.x != np.ones(8), TypeError, "with ndarray", r"to_numpy\(\)"),
    "an array and a tensor": Mistake(lambda b: np.ones(8) == b.x, TypeError, r"np\.equal", r"to_numpy\(\)"),
    "a sum by NumPy": Mistake(lambda b: np.sum(b.x), TypeError, r"np\.(sum|add).* Tensor", r"ct\.reduce_sum"),
    "an exponential by NumPy": Mistake(lambda b: np.exp(b.x), TypeError, r"np\.exp", r"to_numpy\(\).*a kernel"),
    "equality by NumPy": Mistake(lambda b: np.array_equal(b.x, b.x), TypeError, r"np\.array_equal", r"to_numpy\(\)"),
    "a product by NumPy": Mistake(lambda b: np.dot(b.x, b.x), TypeError, r"np\.dot", "kernels.gemm.matmul"),
    "a root": Mistake(lambda b: math.sqrt(b.x), TypeError, "a float", r"to_numpy\(\)"),
    "a tensor shifted": Mistake(lambda b: operator.lshift(b.x, 1), TypeError, r"Tensor\(f32", "a kernel"),
    "masked, copied": Mistake(
        lambda b: api.from_numpy(b.masked), TypeError, "from_numpy: a masked", r"filled\(value\)"
    ),
    "masked, shared": Mistake(lambda b: api.from_dlpack(b.masked), TypeError, "from_dlpack: a masked", "getmaskarray"),
    "masked, written": Mistake(lambda b: api.partition(b.masked, (2,)), TypeError, "a masked", "filled"),
    "a tracer to a kernel": Mistake(
        lambda b: saxpy(b.y.mut.partition((4,)), 1.0, Tracer()), TypeError, "'x': a tracer", "pure_callback"
    ),
    "a tracer copied": Mistake(lambda b: api.from_numpy(Tracer()), TypeError, "from_numpy: a tracer", "pure_callback"),
    "no such generic": Mistake(lambda b: b.launch(BM=3), ValueError, "saxpy has no generic 'BM'", r"y\.partition"),
    "a number for generics": Mistake(
        lambda b: gemm(b.other.mut.partition((2, 2)), b.square, b.square).generics(5),
        ValueError,
        "gemm: .generics",
        r"in the order \(BK\)",
    ),
    "a grid of four": Mistake(
        lambda b: b.launch().grid((1, 1, 1, 1)), ValueError, "saxpy: the grid", "1 to 3 integers"
    ),
    "a number too large": Mistake(
        lambda b: saxpy(b.y.mut.partition((4,)), 1e300, b.x), ValueError, "'a' must fit f32, got 1e", r"float\('inf'\)"
    ),
    "a tensor missing": Mistake(lambda b: saxpy(b.y.mut.partition((4,)), 2.0), ValueError, "missing: x", "takes 3"),
    "a list for a tensor": Mistake(
        lambda b: saxpy(b.y.mut.partition((4,)), 2.0, [1]),
        TypeError,
        "'x' must be a tensor, got list",
        r"api\.from_numpy\(array\)",
    ),
    "too many slices": Mistake(
        lambda b: b.x.slice(range(1), range(1)), ValueError, "2 ranges for the 1 axes", "one each"
    ),
    "a slice of halves": Mistake(
        lambda b: b.x.slice((0.5, 2)), TypeError, r"axis 0: .* \(0\.5, 2\)", r"as in \(2, 6\)"
    ),
    "a slice without an axis": Mistake(
        lambda b: b.x.slice(start=1), TypeError, r"an axis and its bounds.* got slice\(start=1\)", r"slice\(0, 2, 6\)"
    ),
    "a slice with a step": Mistake(
        lambda b: b.x.slice(0, 1, 2, 3), TypeError, r"got slice\(0, 1, 2, 3\)", r"slice\(0, stop=6\)"
    ),
    "a slice to a text": Mistake(lambda b: b.x.slice(0, "a"), TypeError, "axis 0: .*'a'", r"as in tensor\[2:6\]"),
    "None for a number": Mistake(
        lambda b: api.from_numpy([None, 1.0], f32), TypeError, "from_numpy", "expected real numbers, got None"
    ),
    "a record for a number": Mistake(
        lambda b: api.from_numpy(np.zeros(2, [("a", "f4")]), f32), TypeError, "expected real numbers", "got .*'a'"
    ),
    "an integer of 71 bits": Mistake(
        lambda b: api.from_numpy([2**70], i32), ValueError, "from_numpy: an element", "out of the range of i32"
    ),
    "lists of different lengths": Mistake(
        lambda b: api.from_numpy([[1], [1, 2]]), ValueError, "different lengths", "pad them to one"
    ),
    "a list of different lengths": Mistake(
        lambda b: api.copy_host_vec_to_device([[1], [1, 2]]), ValueError, "different lengths", "pad them to one"
    ),
    "lists for a value": Mistake(
        lambda b: api.full([[1], [1, 2]], (3,)), TypeError, "full: value", "expected a number"
    ),
    "lists for a shape": Mistake(lambda b: api.full(1, [[1], [1, 2]]), TypeError, "full: shape", r"such as \(4, 8\)"),
    "a text for an address": Mistake(
        lambda b: borrow_raw_parts("x", (4,), f32, "cpu"), TypeError, "address", "expected an integer, got 'x'"
    ),
    "a text for a stride": Mistake(
        lambda b: borrow_raw_parts(4096, (4,), f32, "cpu", ("x",)), TypeError, "strides", "expected an integer, got 'x'"
    ),
    "a device of no kind": Mistake(
        lambda b: api.meta((4,), device=1.5), TypeError, "expected a device.* got float", "such as 'cpu'"
    ),
    "raw parts of no device": Mistake(
        lambda b: borrow_raw_parts(4096, (4,), f32, "tpu"), ValueError, "device 'tpu'", "expected 'cpu', 'cuda'"
    ),
    "another library's tensor on another device": Mistake(
        lambda b: api.from_dlpack(np.zeros(4), device=Device.from_driver(SimDriver())),
        ValueError,
        "from_dlpack: the tensor is on cpu, not on",
        "copy with to_device",
    ),
    "too many indices": Mistake(lambda b: b.x[0, 0], IndexError, "2 indices for the 1 axes", "one each"),
    "an index too far": Mistake(lambda b: b.x[9], IndexError, "index 9 of axis 0", "-8 to 7"),
    "a launch of a closed graph": Mistake(lambda b: b.closed().launch(), RuntimeError, "captured at", r"op\.graph_on"),
    "an update of one": Mistake(lambda b: b.closed().update(value(1)), RuntimeError, "captured at", r"op\.graph_on"),
    "an update by a number": Mistake(
        lambda b: value(1).graph_on(b.stream).update(5), TypeError, "update: .* int", r"api\.fill"
    ),
    "a capture of a number": Mistake(lambda b: CudaGraph.capture(b.stream, 5), TypeError, "capture: .* int", "build"),
    "a scope of a number": Mistake(lambda b: CudaGraph.scope(b.stream, 5), TypeError, "scope: .* int", "with CudaG"),
    "a record of a number": Mistake(
        lambda b: CudaGraph.scope(b.stream, lambda scope: scope.record(5)),
        TypeError,
        "record.* int",
        "build one",
    ),
    "an unknown device": Mistake(lambda b: Device("tpu"), ValueError, "'tpu'", "'cpu', 'cuda'"),
    "a device by a float": Mistake(lambda b: set_default_device(5.5), TypeError, r"float: 5\.5", "'cpu'"),
    "a pool of no streams": Mistake(
        lambda b: StreamPoolRoundRobin("cpu", 0), ValueError, "size: .* got 0", "at least 1"
    ),
    "a pool of a name": Mistake(lambda b: StreamPoolRoundRobin("cpu", "a"), ValueError, "size: .* got 'a'", "least 1"),
    "addresses of one tensor": Mistake(
        lambda b: api.device_vec(b.x), TypeError, "device_vec: .* Tensor", r"\[tensor\]"
    ),
    "a copy of other lengths": Mistake(lambda b: api.memcpy(b.x, b.square), ValueError, "dst has 8 .* 32", "the same"),
    "a copy of an operation": Mistake(lambda b: api.memcpy(b.x, b.op()), TypeError, "src: ", r"run it first"),
    "a value out of range": Mistake(lambda b: api.full(300, (4,), u8), ValueError, "300", "no value of u8"),
    "shapes that do not fit": Mistake(lambda b: matmul(b.square, b.square), ValueError, r"\(4, 8\)", r"\(k, n\)"),
    "an unknown stage": Mistake(lambda b: b.launch().render("sass"), ValueError, "no stage 'sass'", "there are"),
    "a launch with no result": Mistake(
        lambda b: b.launch().reshape((2, 4)), TypeError, "reshape: .* 3", r"\.first\(\)"
    ),
    "a number for options": Mistake(
        lambda b: b.launch().compile_options(5), TypeError, "compile_options", "occupancy=2"
    ),
    "a kernel's operation on the host": Mistake(lambda b: ct.exp(1.0), TypeError, "exp", r"@cutile\.entry"),
    "an interval of bytes": Mistake(
        lambda b: b.square.reinterpret(i32, (5,)), ValueError, "20 bytes.* 128", "the same"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_answered_and_nothing_is_lost(name: str, host: Device) -> None:
    bench, mistake = Bench(host), MISTAKES[name]
    with pytest.raises((CutileError, DeviceError)) as caught:
        mistake.make(bench)
    error = caught.value
    assert isinstance(error, mistake.kind)
    text = str(error).replace("\n", " ")
    assert re.search(mistake.names, text), text
    assert re.search(mistake.remedy, text), text
    del caught, error
    bench.launch().sync()
    assert bench.y.to_numpy().sync().tolist() == [2.0 * n + 1 for n in range(8)]


def test_there_are_enough() -> None:
    assert len(MISTAKES) >= 45


def test_what_is_not_refused(host: Device) -> None:
    """Identity, hashes and shapes: what dictionaries, `in` and NumPy's functions of shapes ask for."""
    x, y = (api.zeros((2, 3)).sync() for _ in range(2))
    assert (x == x, x == y, x != y, x == None, x == "x") == (True, False, True, False, False)  # noqa: E711
    assert y in [x, y]
    assert {x: 1, y: 2}[y] == 2
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((2, 3), 2, 6)
    one, other = value(1), value(2)
    assert (one == one, one == other, one == None, one in {one, other}) == (True, False, False, True)  # noqa: E711


ANY_NUMBER: dict[str, Callable[[Bench, int], object]] = {
    "an extent": lambda bench, number: api.zeros((number,)),
    "a length": lambda bench, number: api.arange(number),
    "a value": lambda bench, number: api.full(number, (4,), f32),
    "a value of integers": lambda bench, number: api.full(number, (4,), i32),
    "an end": lambda bench, number: api.linspace(0, number, 4),
    "a deviation": lambda bench, number: api.randn((4,), std=number),
    "a seed": lambda bench, number: api.rand((4,), seed=number),
    "a shape": lambda bench, number: bench.square.reshape((number, 4)),
    "axes": lambda bench, number: bench.square.transpose((number, 0)),
    "an index": lambda bench, number: bench.x[number],
    "a sliced axis": lambda bench, number: bench.x.slice(number, 0, 1),
    "a tile": lambda bench, number: bench.x.partition((number,)),
    "an element type": lambda bench, number: api.zeros((4,), number),
    "a grid": lambda bench, number: bench.launch().grid((number, 1, 1)).sync(),
    "an option": lambda bench, number: ct.CompileOptions(max_divisibility=number),
}


@pytest.mark.parametrize("door", ANY_NUMBER)
def test_integers_of_any_size_are_named(door: str, host: Device) -> None:
    """Python writes no integer of more than 4300 digits, and raises in the message that shows it."""
    bench = Bench(host)
    for number in (10**5000, -(10**5000)):
        with pytest.raises((ValueError, TypeError, IndexError)) as caught:
            ANY_NUMBER[door](bench, number)
        assert "Exceeds the limit" not in str(caught.value)
        assert len(str(caught.value)) < 2000
