"""Operations: lazy, used once, composed; closures run at submission; errors keep their way."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

from cuda_async import (
    Device,
    DeviceOp,
    ExecutionContext,
    NotReadyError,
    OwnershipError,
    Pending,
    ReentrancyError,
    Stream,
    UnrunOperationWarning,
    empty,
    into_op,
    value,
    with_context,
    zip,
)
from tests.cuda_async.work import Affine, Call, Read, allocate, words


class Where(DeviceOp[Stream]):
    """Yields the stream it runs on."""

    def execute(self, context: ExecutionContext) -> Stream:
        return context.stream


def test_building_runs_nothing(device: Device) -> None:
    ran: list[int] = []
    op = value(1).map(ran.append)
    assert ran == []
    op.sync()
    assert ran == [1]


def test_values_and_combinators(device: Device) -> None:
    assert value(7).sync() == 7
    assert value(20).map(lambda x: x + 1).then(lambda x: value(2 * x)).sync() == 42
    seen: list[int] = []
    assert value(3).inspect(seen.append).sync() == 3
    assert seen == [3]
    assert zip(value(1), value("a"), 2.5).sync() == (1, "a", 2.5)
    assert zip(value(1)).sync() == (1,)
    assert zip().sync() == ()
    assert zip(value(1), value(2), value(3)).first().sync() == 1
    assert zip(value(1), value(2), value(3)).last().sync() == 3
    assert zip(value(1)).last().sync() == 1
    assert value(5).boxed().sync() == 5
    assert empty(lambda: value(3)).sync() == 3
    assert with_context(lambda context: value(context.device)).sync() is device


def test_anything_becomes_an_operation() -> None:
    op = value(1)
    assert into_op(op) is op
    assert into_op(4).sync() == 4

    class Convertible:
        def __device_op__(self) -> DeviceOp[str]:
            return value("converted")

    assert zip(Convertible(), 1).sync() == ("converted", 1)


def test_kernels_run_in_order_and_return_the_same_objects(device: Device) -> None:
    storage = words(1, count=1000).sync()
    again = Affine(storage, 3, 1).then(lambda s: Affine(s, 2, 5)).sync()
    assert again is storage
    assert set(Read(storage).sync().tolist()) == {13}


def test_then_runs_on_the_same_stream(device: Device, stream: Stream) -> None:
    chain = Where().then(lambda a: Where().map(lambda b: (a, b)))
    assert chain.sync_on(stream) == (stream, stream)
    assert zip(Where(), Where(), Where().then(lambda s: value(s))).sync_on(stream) == (stream,) * 3


def test_zip_runs_from_left_to_right_and_stops_at_the_first_error(device: Device) -> None:
    ran: list[str] = []

    def fail(_: object) -> Any:
        raise KeyError("b")

    op = zip(value("a").inspect(ran.append), value("b").map(fail), value("c").inspect(ran.append))
    with pytest.raises(KeyError):
        op.sync()
    assert ran == ["a"]


def test_a_very_long_chain_is_no_recursion() -> None:
    op: DeviceOp[int] = value(0)
    for _ in range(20_000):
        op = op.map(lambda x: x + 1)
    assert op.then(lambda x: value(x + 1)).sync() == 20_001


def test_an_operation_runs_once_and_the_error_names_the_first_line() -> None:
    op = value(1)
    op.sync()
    with pytest.raises(OwnershipError, match=r"already run at .*test_op\.py:\d+.*shared"):
        op.sync()
    with pytest.raises(OwnershipError, match="already run"):
        op.then(value)


def test_composing_uses_an_operation_up() -> None:
    op = value(1)
    whole = op.map(str)
    with pytest.raises(OwnershipError, match=r"already made part of another operation at .*test_op\.py"):
        op.sync()
    assert whole.sync() == "1"
    a = value(1)
    with pytest.raises(OwnershipError):
        zip(a, a)


def test_a_discarded_operation_does_not_run() -> None:
    op = value(1)
    op.discard()
    op.discard()
    with pytest.raises(OwnershipError, match="discarded"):
        op.sync()


@pytest.mark.parametrize("how", ["sync", "sync_on", "await"])
def test_nested_execution_is_rejected(device: Device, stream: Stream, how: str) -> None:
    def nested(x: int) -> DeviceOp[int]:
        if how == "sync":
            value(x).sync()
        elif how == "sync_on":
            value(x).sync_on(stream)
        else:
            value(x).into_future().send(None)
        raise AssertionError("unreachable")

    with pytest.raises(ReentrancyError, match=r"Return the operation from then\(\)"):
        value(1).then(nested).sync()
    assert value(2).sync() == 2  # and the thread is free again


def test_another_thread_may_run_while_this_one_submits(device: Device) -> None:
    results: list[int] = []

    def elsewhere(x: int) -> int:
        thread = threading.Thread(target=lambda: results.append(value(x).sync()))
        thread.start()
        thread.join(30)
        return x

    assert value(5).map(elsewhere).sync() == 5
    assert results == [5]


async def _coroutine() -> None: ...


# What a type checker would refuse is what these cases are about.
one: Any = value


def _same(x: int) -> Any:
    return x


def _wait(x: int) -> Any:
    return _coroutine()


def _nested(x: int) -> Any:
    return value(x)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: one(1).then(_same), r"must return an operation.*got int"),
        (lambda: one(1).then(_wait), "returned a coroutine"),
        (lambda: one(1).map(_wait), "returned a coroutine"),
        (lambda: one(1).map(_nested), r"use then\(\)"),
        (lambda: one(1).first(), "yields a tuple, got int"),
    ],
)
def test_closures_that_return_the_wrong_thing(build: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build().sync()


def test_a_users_exception_passes_unchanged_with_the_path_as_a_note(device: Device) -> None:
    class MyError(Exception):
        pass

    error = MyError("mine")

    def fail(_: object) -> Any:
        raise error

    with pytest.raises(MyError) as caught:
        zip(value(1), value(2).then(fail)).then(value).sync()
    assert caught.value is error
    (note,) = caught.value.__notes__
    assert "zip (" in note
    assert "test_op.py:" in note


def test_what_was_enqueued_before_an_error_has_been_waited_for(device: Device) -> None:
    done: list[int] = []

    def fail(_: object) -> Any:
        raise KeyError

    with pytest.raises(KeyError):
        Call(lambda: done.append(1)).map(fail).sync()
    assert done == [1]


def test_an_error_in_the_operation_skips_the_closure(device: Device) -> None:
    called: list[object] = []
    with pytest.raises(ValueError, match="positive number of bytes"):
        allocate(0).inspect(called.append).sync()
    assert called == []


def test_an_error_in_the_work_reaches_the_caller(device: Device) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Call(fail).sync()
    assert value(1).sync() == 1


def test_values_are_not_ready_inside_closures(device: Device) -> None:
    storage = words(1, 2, 3).sync()
    with pytest.raises(NotReadyError, match=r"test_op\.py:\d+.*Read after sync\(\) or await"):
        Read(storage).map(lambda w: w[0]).sync()
    with pytest.raises(NotReadyError):
        Read(storage).map(lambda w: w.sum()).sync()
    with pytest.raises(NotReadyError):
        Read(storage).map(len).sync()
    pair: DeviceOp[tuple[Any, int]] = zip(Read(storage), value(3))
    first, (second, third) = zip(Read(storage), pair).sync()
    assert first.tolist() == second.tolist() == [1, 2, 3]
    assert third == 3


def test_what_you_put_in_comes_back_itself(device: Device) -> None:
    items = [1, (2, 3)]
    record = {"a": items}
    assert value(items).sync() is items
    assert value(record).sync() is record


# -- operations that never run ---------------------------------------------------------------------


def test_an_empty_tuple_has_no_first_element() -> None:
    with pytest.raises(TypeError, match="first: expected an operation that yields a tuple, got an empty tuple from"):
        value(()).first().sync()


def test_containers_may_contain_themselves(device: Device) -> None:
    items: list[Any] = [1]
    items.append(items)
    entries: dict[str, Any] = {"items": items}
    entries["self"] = entries
    assert value(items).sync() is items
    assert value(entries).sync() is entries
    storage = words(3).sync()
    result: Any = Read(storage).map(lambda pending: [pending, items]).sync()
    assert result[0].tolist() == [3]
    assert result[1] is items


def test_a_handle_is_an_array_once_the_run_has_completed(device: Device) -> None:
    storage = words(3, 4).sync()
    handles: list[Any] = []
    Read(storage).inspect(handles.append).sync()
    assert np.asarray(handles[0]).tolist() == [3, 4]
    assert np.asarray(handles[0], dtype=np.float32).dtype == np.float32


def test_dropping_an_operation_with_effects_warns_with_its_line(device: Device) -> None:
    storage = words(1).sync()
    with pytest.warns(UnrunOperationWarning, match="was never run") as caught:
        Affine(storage, 2, 0)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert Read(storage).sync().tolist() == [1]


def test_dropping_a_composed_operation_warns_once(device: Device) -> None:
    storage = words(1).sync()
    with pytest.warns(UnrunOperationWarning) as caught:
        zip(Affine(storage, 2, 0).map(str), 1)
    assert len(caught) == 1


def test_dropping_unzipped_or_shared_branches_warns_once(device: Device) -> None:
    storage = words(1).sync()
    for build in (lambda: Affine(storage, 2, 0).shared(), lambda: zip(Affine(storage, 2, 0), 1).unzip()):
        with pytest.warns(UnrunOperationWarning) as caught:
            build()
        assert len(caught) == 1


def test_no_warning_without_effects_when_discarded_or_unwinding(device: Device) -> None:
    storage = words(1).sync()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value(1).map(str)
        Affine(storage, 2, 0).map(str).discard()
        try:
            raise KeyError
        except KeyError:
            Affine(storage, 2, 0)  # dropped while an exception is being handled
    assert Read(storage).sync().tolist() == [1]


# -- operations taken for their results ------------------------------------------------------------


def test_an_operation_taken_for_its_result_says_to_run_it(device: Device) -> None:
    op: Any = value((1, 2))
    line = rf"the operation value made at {__file__}:\d+ "
    with pytest.raises(
        AttributeError, match=rf"{line}has no attribute 'shape'.* run it .*\.map\(lambda result: result\.shape\)"
    ):
        op.shape  # noqa: B018
    # A function given to map has no values yet: a remedy that reads them there would fail, too.
    with pytest.raises(AttributeError, match=rf"{line}has no attribute 'numpy'.*, or op\.to_numpy\(\)\.sync\(\)$"):
        op.numpy()
    for wrong in (lambda: op[0], lambda: [*op]):
        with pytest.raises(TypeError, match=rf"{line}has no items.* run it .*\.first\(\)"):
            wrong()
    with pytest.raises(TypeError, match=rf"{line}is no array.* run it .*to_numpy\(\)\.sync\(\)"):
        np.asarray(op)
    assert op.sync() == (1, 2)  # it is none the worse for it


def test_an_operation_that_failed_to_build_is_dropped_in_silence(device: Device) -> None:
    class Broken(DeviceOp[None]):
        def __init__(self) -> None:
            raise ValueError("before the base class")

        def execute(self, context: ExecutionContext) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="before the base class"):
            Broken()


def test_results_that_nest_deeply_are_searched() -> None:
    """Without a frame for each level, and each container once."""
    device = Device.host()
    count = Pending[int]("count")
    count.set(7)
    deep: Any = [count]
    plain: Any = {"x": 1}
    for level in range(5000):
        deep = [deep] if level % 3 else {"in": (deep, 1)}
        plain = [plain] if level % 3 else {"in": (plain, 1)}
    with device:
        found, same = value(deep).sync(), value(plain).sync()
    assert same is plain
    for level in reversed(range(5000)):
        found = found[0] if level % 3 else found["in"][0]
    assert found == [7]
    shared: Any = (count, "x")
    for _ in range(60):  # a path for each of 2**60 choices
        shared = [shared, shared]
    with device:
        found = value(shared).sync()
    assert found[0] is found[1]
    around: Any = [count]
    around.append(around)
    with device:
        first, second = value(around).sync()
    assert first == 7
    assert second is around
