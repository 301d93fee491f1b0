"""The fast path of a launch does what the general way does, in fewer steps; its text is golden, and can be debugged."""

from __future__ import annotations

import bdb
import linecache
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutile as ct
from cuda_async import Device
from cuda_async.core.lease import Lease
from cuda_async.site import user_site
from cuda_async.testing import SimDriver
from cuda_async.unsafe import async_on
from cutile import Kernel, Mut, api, f32
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.launch import fastpath
from cutile.launch.arguments import is_op
from cutile.launch.fastpath import (
    Recognizers,
    define,
    enqueue_text,
    finder_text,
    recognizer_text,
    repeat_text,
    unrecognized,
)
from tests.launch.test_compiled_kernel import Gpu, make, make_of, saxpy
from tests.support.golden import Golden


@ct.entry
def two_outputs(y: Mut, z: Mut, n: ct.i32, x: ct.Tensor[f32, 8, ct.Dyn], a: ct.f64):
    """Two outputs, an integer, an extent that the signature declares, a float of 64 bits."""
    y.store(y.load() * ct.convert_scalar(a, f32) + ct.convert_scalar(n, f32))
    z.store(z.load() + ct.convert_scalar(x.shape[1], f32))


@ct.entry
def numbers_only(n: ct.i32):
    """Nothing that tells the grid."""
    ct.cuda_tile_print("{}\n", n)


def test_the_text_of_each_function_is_golden(golden: Golden) -> None:
    for kernel in (saxpy, two_outputs, numbers_only):
        golden(f"launch/recognize_{kernel.cache.signature.name}.py", recognizer_text(kernel.cache.signature))
    golden("launch/recognize_saxpy_but_y.py", recognizer_text(saxpy.cache.signature, (0,)))
    golden("launch/find_two_outputs.py", finder_text(two_outputs.cache.signature))
    pending, *_ = make(Device.from_driver(SimDriver(seed=1)))
    signature, parameters = saxpy.cache.signature, pending.compiled.executable.parameters
    golden("launch/enqueue_saxpy.py", enqueue_text(signature, parameters, verifies=True))
    op: Any = pending.op
    golden("launch/repeat_saxpy.py", repeat_text(3, parameters, op._checked, op._grid))


# -- both ways over random arguments ---------------------------------------------------------------

SCALARS = st.sampled_from(
    [0.0, -1.5, 65504.0, 65505.0, -1e6, 1e39, float("inf"), float("nan"), True, 3, 2**31, "7", None]
)
SHAPES = st.sampled_from([(8,), (8, 4), (8, 16), (2, 3, 4)])
MISTAKES = st.sampled_from(["list", "op", "cut", "whole", "i32"])


def rarely(draw: st.DrawFn) -> bool:
    return draw(st.integers(0, 9)) == 0


def tensor(draw: st.DrawFn, shape: tuple[int, ...], *, written: bool) -> Any:
    """What a parameter takes: a tensor or a partition of any layout; rarely what is taken for one by mistake."""
    shape = draw(SHAPES) if rarely(draw) else shape
    mistake = draw(MISTAKES) if rarely(draw) else None
    if mistake == "list":
        return [1.0, 2.0]
    if mistake == "op":
        return api.zeros(shape, f32)
    x: Any = api.zeros(shape, ct.i32 if mistake == "i32" else f32).sync_on(HOST)
    if mistake == "whole" or (not written and mistake != "cut"):
        layout = draw(st.sampled_from(["plain", "slice", "reversed"]))
        return x[1:] if layout == "slice" else x[::-1] if layout == "reversed" else x
    tile = tuple(min(extent, draw(st.sampled_from([2, 4]))) for extent in shape)
    return x.mut.partition_prefix(tile) if rarely(draw) else x.mut.partition(tile)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Kernel, list[Any]]:
    """A kernel and arguments, of which some may be the same."""
    kernel: Kernel = draw(st.sampled_from([saxpy, two_outputs, numbers_only]))
    shape = draw(SHAPES)
    arguments: list[Any] = []
    for parameter in kernel.cache.signature.parameters:
        if parameter.kind == "scalar":
            arguments.append(draw(SCALARS) if rarely(draw) else 3)
        elif arguments and rarely(draw):
            arguments.append(arguments[0])
        else:
            arguments.append(tensor(draw, shape, written=parameter.kind == "mut"))
    return kernel, arguments


HOST = Device.host().new_stream()


class General(Recognizers):
    """In place of a kernel's recognizers, so that the general way checks each call."""

    def __missing__(self, types: tuple[type, ...]) -> Any:
        return unrecognized

    def learn(self, checked: Any) -> None:
        """Learn nothing."""


def outcome(kernel: Kernel, arguments: list[Any], *, fast: bool) -> object:
    """What a call makes: all that the op knows, or the error's type and text."""
    launchable = kernel.launchable
    recognizers: Any = launchable.recognizers
    launchable.recognizers = recognizers if fast else General(kernel.cache)
    try:
        op: Any = kernel(*arguments)
    except Exception as error:
        return type(error), str(error)
    finally:
        launchable.recognizers = recognizers
    checked = [each if isinstance(each, int | float) else id(each) for each in op._checked]
    assert all(lease in use[1].leases for use in op._uses for lease in op._leases)
    lent = [[*lease.uses] for lease in op._leases if lease.uses]
    op.discard()
    assert not any(use[1].leases for use in op._uses)
    return repr((checked, [*op._uses], id(op._plan), op._grid, lent, op.arity, op.label(), op.detail()))


RECOGNIZED: list[bool] = []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(calls())
def test_what_is_recognized_is_what_checking_finds(call: tuple[Kernel, list[Any]]) -> None:
    kernel, arguments = call
    lease = Lease((), object(), user_site())
    recognize = kernel.launchable.recognizers[*map(type, arguments)]
    if any(map(is_op, arguments)):  # a call would use up an op that has not run; see `test_lazy.py`
        return
    general = outcome(kernel, arguments, fast=False)  # makes the specialization that the recognizer knows
    assert outcome(kernel, arguments, fast=True) == general
    with suppress(ArgumentError, ArgumentTypeError):  # of a number; the same as checking says, as was seen above
        recognized = recognize(tuple(arguments), lease, ())
        RECOGNIZED.append(recognized is not None)
        lease.give_back()
        if recognized is not None and not isinstance(general, str):
            assert not recognized[-1], "arguments are recognized that checking refuses, and nobody looks for conflicts"


def test_the_fast_path_is_the_usual_one() -> None:
    """Of the calls above; else they would show nothing."""
    assert sum(RECOGNIZED) > 20
    assert RECOGNIZED.count(False) > 20


class Recording(Gpu):
    """Takes both ways, and notes the numbers of each."""

    def launch(self, grid: Any, numbers: Any, stream: Any) -> None:
        self.launches.append((stream.driver, grid[0] * grid[1] * grid[2], list(numbers)))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.data())
def test_what_is_enqueued_is_what_the_general_way_enqueues(data: st.DataObject) -> None:
    device = Device.from_driver(SimDriver(seed=1))
    stream, other = device.new_stream(), device.new_stream()
    rows, tile = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([4, 8]))
    x, y = api.ones((rows, 8), f32).sync_on(stream), api.zeros((rows, 8), f32).sync_on(stream)
    if data.draw(st.booleans()):
        x = x[:, ::-1]
    op: Any = saxpy(y.mut.partition((tile, 4)), data.draw(st.sampled_from([0.5, 3])), x)
    most = data.draw(st.sampled_from([1, 2**31 - 1]))
    pending = make_of(saxpy, op, stream, gpu=Recording(most))
    ways: list[Any] = [pending.kernel.enqueue, cast("Any", pending.kernel)._enqueue]
    marks: list[list[tuple[int, int]]] = []
    for way in data.draw(st.permutations(ways)):
        async_on(api.fill(x if x.strides[1] == 1 else y, 2.0), other)
        before = stream.statistics().waits
        way(op._checked, op._uses, op._grid, stream)
        marks.append([(use[2], stream.statistics().waits - before) for use in op._uses])
        assert pending.gpu in stream.held.values()
    assert marks[0] == marks[1]
    first, second = pending.gpu.launches
    assert first == second


# -- what generated functions are to people --------------------------------------------------------


def test_a_traceback_shows_the_generated_line() -> None:
    class Broken(Gpu):
        def pack(self, memory: list[Any], offset: int, *numbers: Any) -> None:
            raise ZeroDivisionError("it does not fit")

    stream = Device.from_driver(SimDriver(seed=1)).new_stream()
    x, y = api.ones((32,), f32).sync_on(stream), api.zeros((32,), f32).sync_on(stream)
    made = make_of(saxpy, saxpy(y.mut.partition((8,)), 3.0, x), stream, gpu=Broken(9))
    with pytest.raises(ZeroDivisionError) as caught:
        made.launch(stream)
    shown = "".join(traceback.format_exception(caught.value))
    assert 'File "<cutile launch: enqueue saxpy' in shown
    assert "    pack(memory, 0, c0.address, c0.shape[0]," in shown


class Stops(bdb.Bdb):
    """A debugger that notes where it stops."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[tuple[str, str]] = []

    def user_line(self, frame: FrameType) -> None:
        if self.break_here(frame):
            file, line = frame.f_code.co_filename, frame.f_lineno
            self.stops.append((file, linecache.getline(file, line).strip()))
        self.set_continue()


def test_a_breakpoint_in_a_generated_function_holds() -> None:
    pending, *_, stream = make(Device.from_driver(SimDriver(seed=1)))
    file = cast("Any", pending.kernel.enqueue).__code__.co_filename
    line = next(i for i in range(1, 40) if linecache.getline(file, i).strip().startswith("s0.order("))
    debugger = Stops()
    assert debugger.set_break(file, line) is None, "the debugger finds no such line"
    tracer = sys.gettrace()
    try:
        debugger.runcall(pending.launch, stream)
    finally:
        sys.settrace(tracer)
        debugger.clear_all_breaks()
    assert debugger.stops == [(file, "s0.order(stream, True)")]


def test_texts_have_files_of_their_own_and_equal_ones_share() -> None:
    def file(text: str) -> str:
        return define("a test", text, {}).__code__.co_filename

    one, two = "def f():\n    return 1\n", "def f():\n    return 2\n"
    assert [file(one), file(two), file(one)] == ["<cutile launch: a test>", "<cutile launch: a test, 2>", file(one)]
    linecache.checkcache()
    assert linecache.getlines(file(two)) == two.splitlines(keepends=True)


def test_kernels_without_end_keep_no_texts_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastpath, "_MAX_TEXTS", len(fastpath._texts))  # pyright: ignore[reportPrivateUsage]
    function = define("one too many", "def f():\n    return 3\n", {})
    assert function() == 3
    assert not linecache.getlines(function.__code__.co_filename)


# -- what a launch costs ---------------------------------------------------------------------------

BYTECODES = {"built and executed": 897, "and waited for": 1636, "repeated": 76}
"""Instructions of CPython 3.13 that a launch of saxpy takes; raise none of them unasked.

The simulated driver's are among them, with 17 and 43 for the lock under which it appends to its queues.
"""


def bytecodes(function: Callable[[], object]) -> int:
    """How many instructions a call takes on this thread."""
    count = 0
    monitoring: Any = vars(sys)["monitoring"]  # since 3.12

    def note(code: object, offset: int) -> None:
        nonlocal count
        count += 1

    monitoring.use_tool_id(monitoring.PROFILER_ID, "bytecodes")
    monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION, note)
    try:
        monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION)
        function()
    finally:
        monitoring.set_events(monitoring.PROFILER_ID, 0)
        monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION, None)
        monitoring.free_tool_id(monitoring.PROFILER_ID)
    return count


@pytest.mark.skipif(sys.version_info[:2] != (3, 13), reason="other versions of Python have other instructions")
def test_a_launch_costs_no_more_bytecodes() -> None:
    device = Device.from_driver(SimDriver(seed=1))
    pending, y, x, stream = make(device)
    part, op = y.mut.partition((8,)), cast("Any", pending.op)
    op._plan.memo[device] = pending.kernel
    y0, _, x0 = op._checked
    repeat = pending.kernel.repeated(op._checked, op._grid)
    assert repeat is not None
    costs = {
        "built and executed": lambda: async_on(saxpy(part, 3.0, x), stream),
        "and waited for": lambda: saxpy(part, 3.0, x).sync_on(stream),
        "repeated": lambda: repeat(stream, y0.address, 3.0, x0.address),
    }
    for launch in costs.values():
        launch()
    assert {name: min(bytecodes(launch) for _ in range(3)) for name, launch in costs.items()} == BYTECODES
