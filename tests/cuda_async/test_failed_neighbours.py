"""A failure reaches the users of its results, and neither later work nor memory that the operation only read."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from cuda_async import (
    CudaGraph,
    DependencyError,
    Device,
    DeviceOp,
    DriverError,
    ExecutionContext,
    Storage,
    Use,
    value,
)
from cuda_async.errors import as_text, without_traceback
from cuda_async.testing import SimDriver, wait_all_idle
from tests.cuda_async.work import Affine, CopyTo, Read, allocate, launch_affine, words


class Peek(DeviceOp[None]):
    """Reads a storage in a host function."""

    has_effects = True

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage
        self.lend(Use("storage", storage, write=False))

    def execute(self, context: ExecutionContext) -> None:
        self._storage.use(context.stream, write=False)
        context.stream.call(lambda: None)


class Double(DeviceOp[None]):
    """Writes a storage."""

    has_effects = True

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage
        self.lend(Use("storage", storage, write=True))

    def execute(self, context: ExecutionContext) -> None:
        self._storage.use(context.stream, write=True)
        launch_affine(context.stream, self._storage.address, self._storage.nbytes // 4, 2, 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_failed_reader_does_not_fail_the_next_writer(seed: int) -> None:
    sim = SimDriver(seed)
    device = Device.from_driver(sim)
    a, b = device.new_stream(), device.new_stream()
    storage = words(3, count=8).sync_on(a)
    sim.fail("run:call")
    b.driver.begin_run()
    storage.use(b, write=False)
    b.call(lambda: None)  # a reader that will fail, still to run when the writer is enqueued
    Double(storage).sync_on(a)
    assert Read(storage).sync_on(a).tolist() == [6] * 8


def test_what_needs_a_failed_result_fails_with_it(sim_device: Device, sim: SimDriver) -> None:
    a, b = sim_device.new_stream(), sim_device.new_stream()
    storage = words(3, count=8).sync_on(a)
    sim.fail("run:launch")
    a.driver.begin_run()
    storage.use(a, write=True)
    launch_affine(a, storage.address, 8, 2, 0)
    with pytest.raises(DependencyError, match="injected fault"):
        Peek(storage).sync_on(b)


@pytest.mark.parametrize("where", ["the updates' stream", "another stream"])
@pytest.mark.parametrize("before", [0, 1])
def test_what_a_launch_makes_of_a_failed_update_fails(
    sim_device: Device, sim: SimDriver, before: int, where: str
) -> None:
    """The update has not failed yet when the launch is enqueued."""
    home, other, reader = (sim_device.new_stream() for _ in range(3))
    target, source = (words(number, count=16).sync_on(home) for number in (1, 2))
    graph = CopyTo(target, source).graph_on(home)
    launch = graph.launch().bind(home if where.startswith("the") else other)
    for _ in range(before):
        launch()
    sim.run_until_idle()
    sim.automatic = False
    sim.fail("run:launch")
    graph.update(Affine(source, 5, 1))
    launch()
    sim.automatic = True
    with pytest.raises(DependencyError, match="injected fault"):
        Read(target).sync_on(reader)
    with pytest.raises(DriverError, match="injected fault"):
        Read(source).sync_on(reader)
    with pytest.raises(DriverError, match="injected fault"):
        launch()  # the failure has been noticed


@pytest.mark.parametrize("where", ["the graph's stream", "another stream"])
@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "unnoticed"])
@pytest.mark.parametrize("spoiler", ["the launch", "another graph", "a launch recorded in a graph"])
def test_a_launch_makes_its_outputs_anew(
    sim_device: Device, sim: SimDriver, spoiler: str, noticed: bool, where: str
) -> None:
    """Whatever failed to write them, and whether or not somebody has noticed: they are no operands."""
    home, other, third = (sim_device.new_stream() for _ in range(3))
    graph = words(3, count=8).graph_on(home)
    output = graph.take_output()
    assert output is not None
    stream = home if where.startswith("the") else other
    graph.launch().sync_on(stream)
    spoil: CudaGraph[Any] = graph
    if spoiler != "the launch":
        spoil = Affine(output, 2, 1).graph_on(third)
        if spoiler != "another graph":
            graph = graph.launch().graph_on(home)
    launch = spoil.launch()
    sim.fail("run:copy" if spoil is graph else "run:launch")
    if noticed:
        with pytest.raises(DriverError, match="injected fault"):
            launch.sync_on(third)
        with pytest.raises(DriverError, match="injected fault"):
            Read(output).sync_on(home)
    else:
        launch.bind(third)()
        sim.run_until_idle()
    for _ in range(2):
        graph.launch().sync_on(stream)
        assert Read(output).sync_on(home).tolist() == [3] * 8


def test_no_launch_makes_anew_an_output_that_an_update_writes(sim_device: Device, sim: SimDriver) -> None:
    home, other = sim_device.new_stream(), sim_device.new_stream()
    graph = words(3, count=8).then(lambda made: allocate(32).then(lambda room: CopyTo(made, room))).graph_on(home)
    pair = graph.take_output()
    assert pair is not None
    graph.launch().sync_on(home)
    graph.update(Affine(pair[1], 0, 5))
    graph.launch().sync_on(home)
    assert Read(pair[0]).sync_on(home).tolist() == [5] * 8
    sim.fail("run:launch")
    graph.update(Affine(pair[1], 2, 0))
    limit = time.monotonic() + 20
    while pair[1].error is None and time.monotonic() < limit:  # the reactor's thread notices
        time.sleep(0.001)
    words(3, count=8).sync_on(home)  # another stream that waits for this one meets no failure any more
    for _ in range(2):
        with pytest.raises(DriverError, match="injected fault"):
            graph.launch().sync_on(other)


def test_ordering_first_does_not_hide_a_later_dependency(sim_device: Device, sim: SimDriver) -> None:
    a, b = sim_device.new_stream(), sim_device.new_stream()
    storage, other = words(3, count=8).sync_on(a), words(3, count=8).sync_on(a)
    sim.fail("run:launch")
    a.driver.begin_run()
    storage.use(a, write=True)
    launch_affine(a, storage.address, 8, 2, 0)
    other.use(a, write=False)
    a.call(lambda: None)
    other.use(b, write=True)  # waits for the reader on `a`, without depending on it
    with pytest.raises(DependencyError, match="injected fault"):
        Peek(storage).sync_on(b)


def test_freeing_what_a_failed_operation_used_fails_nobody(sim_device: Device, sim: SimDriver) -> None:
    a, b = sim_device.new_stream(), sim_device.new_stream()
    storage = words(3, count=8).sync_on(a)
    sim.fail("run:call")
    b.driver.begin_run()
    storage.use(b, write=False)
    b.call(lambda: None)
    del storage
    gc.collect()
    fresh = words(5, count=8).sync_on(a)  # frees the old one first, behind the failed reader
    assert Read(fresh).sync_on(a).tolist() == [5] * 8
    wait_all_idle(sim_device)
    assert sim.memory_info().used == fresh.nbytes or sim.memory_info().used == 64


class Holder:
    """An object that a frame refers to."""


def test_a_kept_failure_keeps_no_frames(sim_device: Device, sim: SimDriver) -> None:
    stream = sim_device.new_stream()
    storage = words(3, count=8).sync_on(stream)

    def fail() -> weakref.ref[Holder]:
        local = Holder()
        sim.fail("run:launch")
        with pytest.raises(DriverError, match="injected fault"):
            Double(storage).sync_on(stream)
        with pytest.raises(DriverError, match="injected fault"):
            Read(storage).sync_on(stream)
        return weakref.ref(local)

    seen = fail()
    gc.collect()
    assert isinstance(storage.error, DriverError)
    assert storage.error.__traceback__ is None
    assert seen() is None


def test_a_copy_of_an_error_is_the_error_without_its_frames() -> None:
    def deep() -> None:
        try:
            raise KeyError("inner")
        except KeyError as cause:
            error = DriverError(7, "SOME_NAME", "the detail")
            error.add_note("a note")
            raise error from cause

    with pytest.raises(DriverError) as caught:
        deep()
    copy = without_traceback(caught.value)
    assert type(copy) is DriverError
    assert (copy.code, str(copy), copy.__notes__) == (7, str(caught.value), ["a note"])
    assert copy.__traceback__ is None
    assert isinstance(copy.__cause__, KeyError)
    assert copy.__cause__.__traceback__ is None
    copy.add_note("another")
    assert caught.value.__notes__ == ["a note"]


@dataclass(frozen=True)
class Frozen(Exception):
    """An error that cannot be copied: its attributes, `args` among them, cannot be set."""

    number: int

    def __str__(self) -> str:
        return f"number {9 // self.number}"


def test_an_error_that_cannot_be_copied_is_told_of() -> None:
    copy = without_traceback(Frozen(3))
    assert isinstance(copy, DependencyError)
    assert str(copy) == "Frozen: number 3"


def test_an_error_whose_message_fails_is_told_of() -> None:
    copy = without_traceback(Frozen(0))
    assert isinstance(copy, DependencyError)
    assert "Frozen" in str(copy)


def test_a_copy_needs_no_constructor_of_the_users() -> None:
    class Odd(Exception):
        def __new__(cls, *, only: int = 0, **rest: int) -> Odd:
            return super().__new__(cls)

        def __init__(self, *, only: int = 0, **rest: int) -> None:
            super().__init__("odd")
            self.only = only

    copy = without_traceback(Odd(only=3))
    assert isinstance(copy, Odd)
    assert (copy.only, str(copy)) == (3, "odd")


def raised(error: BaseException) -> BaseException:
    """Raise an error and return it, now with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


class Bearing(Exception):
    """An error with another object as an attribute."""

    def __init__(self, inner: object) -> None:
        super().__init__("bearing")
        self.inner = inner


class Passing(Bearing):
    """The same, and the object is an argument as well."""

    def __init__(self, inner: object) -> None:
        super().__init__(inner)
        self.args = (inner,)


def caused(cause: BaseException) -> BaseException:
    error = ValueError("caused")
    error.__cause__ = cause
    return error


PLACES: dict[str, Callable[[BaseException], BaseException]] = {
    "argument": KeyError,
    "list": lambda inner: KeyError([1, inner]),
    "tuple": lambda inner: KeyError((inner, 1)),
    "dict": lambda inner: KeyError({"a": inner}),
    "nested": lambda inner: KeyError(({"a": [inner]}, 2)),
    "attribute": Bearing,
    "attribute, list": lambda inner: Bearing([inner]),
    "attribute, dict": lambda inner: Bearing({1: inner}),
    "argument and attribute": Passing,
    "cause": caused,
    "attribute of a cause": lambda inner: caused(Bearing(inner)),
    "cause of an attribute": lambda inner: Bearing(caused(inner)),
    "member": lambda inner: ExceptionGroup("group", [cast("Exception", inner), KeyError(1)]),
    "attribute of a member": lambda inner: ExceptionGroup("group", [Bearing(inner)]),
}
"""Places where an error may hold another one."""


@pytest.mark.parametrize("place", PLACES)
def test_a_copy_holds_no_frame_wherever_an_error_is(place: str) -> None:
    def fail() -> tuple[BaseException, weakref.ref[Any]]:
        local = np.empty(1)  # of the frame in the inner error's traceback
        return raised(PLACES[place](raised(ValueError("inner")))), weakref.ref(local)

    error, local = fail()
    copy = without_traceback(error)
    assert local() is not None  # the original holds it
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    del error
    gc.collect()
    assert local() is None
    assert copy.__traceback__ is None


def test_an_error_in_two_places_is_copied_once() -> None:
    copy = without_traceback(Passing(raised(ValueError("inner"))))
    assert isinstance(copy, Passing)
    assert copy.inner is copy.args[0]


def test_a_list_that_holds_itself_and_an_error_is_copied() -> None:
    items: list[object] = [raised(ValueError("inner"))]
    items += [items, items]
    copy = without_traceback(KeyError(items))
    assert copy.args[0][0].__traceback__ is None


def test_groups_that_nest_deeply_are_copied() -> None:
    error: Any = ValueError("innermost")
    for _ in range(5000):
        error = ExceptionGroup("group", [error])
    copy: Any = without_traceback(raised(error))
    for _ in range(5000):
        (copy,) = copy.exceptions
    assert str(copy) == "innermost"


def test_an_integer_whose_repr_fails_is_named_by_its_class() -> None:
    class Odd(int):
        def __repr__(self) -> str:
            raise LookupError("no")

    assert as_text(Odd(5)) == "<Odd>"
    assert as_text(10**5000) == "<int of 16610 bits>"


def test_causes_in_a_cycle_are_copied_as_a_cycle() -> None:
    first, second, alone = raised(KeyError("first")), raised(ValueError("second")), raised(ValueError("alone"))
    first.__cause__, second.__cause__, alone.__cause__ = second, first, alone
    copy = without_traceback(first)
    assert isinstance(copy.__cause__, ValueError)
    assert copy.__cause__.__cause__ is copy
    assert copy is not first
    assert copy.__traceback__ is copy.__cause__.__traceback__ is None
    copy = without_traceback(alone)
    assert copy.__cause__ is copy is not alone


def test_a_long_chain_of_causes_is_copied() -> None:
    error: BaseException = ValueError(0)
    for number in range(1, 5000):
        cause, error = error, ValueError(number)
        error.__cause__ = cause
    copy: BaseException | None = without_traceback(error)
    for number in reversed(range(5000)):
        assert copy is not None
        assert copy.args == (number,)
        copy = copy.__cause__
    assert copy is None


class Numbered(ExceptionGroup[Any]):
    """A group with a constructor and an attribute of its own."""

    number: int

    def __new__(cls, errors: Any, number: Any) -> Numbered:
        group = super().__new__(cls, f"number {number}", errors)
        group.number = number
        return group

    def __init__(self, errors: Any, number: Any) -> None:
        """As `__new__`."""


def test_members_of_a_group_are_copied() -> None:
    member = ValueError("a member")
    raised(member)
    inner = Numbered([member], 3)
    group = ExceptionGroup[Any]("the group", [inner, KeyError("another")])
    member.__cause__ = group  # a cycle through the members
    copy = cast("Any", without_traceback(raised(group)))
    assert type(copy) is ExceptionGroup
    assert str(copy) == str(cast("Any", group))
    nested, other = copy.exceptions
    assert isinstance(nested, Numbered)
    assert (nested.number, str(nested)) == (3, str(inner))
    assert isinstance(other, KeyError)
    (leaf,) = nested.exceptions
    assert isinstance(leaf, ValueError)
    assert leaf is not member
    assert leaf.__traceback__ is None
    assert leaf.__cause__ is copy
    assert copy.args == ("the group", [nested, other])
    assert nested.args == ("number 3", [leaf])


def test_errors_among_the_arguments_are_copied() -> None:
    inner = raised(KeyError("inner"))
    error = RuntimeError(inner, [inner, 3], 4)
    copy = without_traceback(error)
    first, items, last = copy.args
    assert isinstance(first, KeyError)
    assert first.__traceback__ is None
    assert items == [first, 3]
    assert last == 4
    assert error.args == (inner, [inner, 3], 4)


class Base(Exception):
    """A base without fields."""


def test_a_copy_keeps_what_a_builtin_has_beside_its_arguments() -> None:
    missing = without_traceback(raised(FileNotFoundError(2, "No such file", "a name")))
    assert isinstance(missing, FileNotFoundError)
    assert (missing.filename, str(missing)) == ("a name", "[Errno 2] No such file: 'a name'")
    module = without_traceback(ImportError("no such module", name="some", path="somewhere"))
    assert isinstance(module, ImportError)
    assert (module.name, module.path) == ("some", "somewhere")

    class Derived(Base, OSError):
        """The fields are those of the second base."""

    derived = without_traceback(Derived(2, "No such file", "a name"))
    assert isinstance(derived, Derived)
    assert derived.filename == "a name"


FAILURES = (DriverError, DependencyError)


def fail_update(graph: CudaGraph[Any], op: DeviceOp[Any], storage: Storage) -> None:
    """Update a graph by an operation that fails on the device, and wait until the runtime has noticed."""
    graph.update(op)
    with pytest.raises(FAILURES):
        graph.stream.synchronize()
    limit = time.monotonic() + 30
    while storage.error is None and time.monotonic() < limit:
        time.sleep(0.001)
    assert storage.error is not None


@pytest.mark.parametrize("how", ["whole", "amid a chain", "with a failed launch between"])
def test_an_update_heals_what_a_failed_update_left(sim_device: Device, sim: SimDriver, how: str) -> None:
    """An operand raised the failure at each later use, an update's too, and the graph was lost."""
    stream = sim_device.new_stream()
    source, target = (words(number, count=4).sync_on(stream) for number in (5, 6))
    with allocate(16).then(lambda new: CopyTo(new, target)).graph_on(stream) as graph:
        output = cast("Any", graph.take_output())[0]
        sim.fail("run:copy")
        fail_update(graph, CopyTo(target, source), target)
        with pytest.raises(FAILURES):
            graph.launch().sync_on(stream)
        with pytest.raises(FAILURES):  # it reads what it writes
            graph.update(Affine(target, 1, 1))
        if how == "with a failed launch between":
            with pytest.raises(FAILURES):
                graph.launch().sync_on(sim_device.new_stream())
        sim.fail("copy")
        with pytest.raises(FAILURES):  # an update that was not enqueued heals nothing
            graph.update(CopyTo(target, source))
        with pytest.raises(FAILURES):
            graph.launch().sync_on(stream)
        graph.update(
            value(0).then(lambda _: CopyTo(target, source)) if how == "amid a chain" else CopyTo(target, source)
        )
        graph.launch().sync_on(stream)
        stream.synchronize()
        assert set(Read(output).sync_on(stream).tolist()) == {5}
        sim.fail("run:copy")
        fail_update(graph, CopyTo(target, source), target)  # and again
        graph.update(CopyTo(target, source))
        graph.launch().sync_on(stream)


class Write(DeviceOp[None]):
    """Writes the bytes [start, stop) of a storage, all of them."""

    has_effects = True

    def __init__(self, storage: Storage, start: int, stop: int) -> None:
        super().__init__()
        self._storage, self._start, self._stop = storage, start, stop
        self.lend(Use("storage", storage, True, start, stop))

    def execute(self, context: ExecutionContext) -> None:
        context.overwrite(self._storage, self._start, self._stop)
        context.stream.fill(self._storage.address + self._start, self._stop - self._start, b"1")


def test_an_update_heals_only_bytes_that_it_writes(sim_device: Device, sim: SimDriver) -> None:
    stream = sim_device.new_stream()
    target, output = (words(number, count=4).sync_on(stream) for number in (5, 6))
    with CopyTo(output, target).graph_on(stream) as graph:
        sim.fail("run:fill")
        fail_update(graph, Write(target, 4, 8), target)
        for start, stop in ((0, 4), (6, 8), (8, 16)):
            with pytest.raises(FAILURES):
                graph.update(Write(target, start, stop))
        graph.update(Write(target, 4, 12))
        graph.launch().sync_on(stream)
