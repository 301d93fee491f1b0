# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
"""Tensors over several devices, on the CPU: layouts, kernels on parts, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from cuda_async import Device, spread, value
from cuda_async.collective import Communicator
from cuda_async.testing import CheckedDriver, Ledger
from cutile import ArgumentError, ArgumentTypeError, api, bf16
from cutile.sharding import PARTIAL, Mesh, Sharded
from kernels.gemm import matmul
from tests.cuda_async.ranks import joined


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, bf16.numpy], ids=str)
def test_every_layout_is_the_same_tensor(world: int, dtype: Any) -> None:
    array = np.arange(5 * 4 * 3).reshape(5, 4, 3).astype(dtype)
    with Mesh([Device.host()] * world) as mesh:
        layouts: list[Any] = [None, 0, 1, -1, np.int64(1)]
        for first in layouts:
            x = (mesh.replicate(array) if first is None else mesh.shard(array, axis=first)).sync()
            assert x.shape == array.shape
            for second in layouts:
                y = x.reshard(second).sync()
                assert y.layout == (None if second is None else second % 3)
                np.testing.assert_array_equal(y.to_numpy().sync(), array)
                if second is not None:
                    mapped = mesh.map(lambda part: part.dup(), y, layout=second).sync()
                    assert mapped.extents == y.extents
                    np.testing.assert_array_equal(mapped.numpy(), array)
                np.testing.assert_array_equal(y.numpy(), array)
                if second is not None:
                    extents: list[int] = [part.shape[second] for part in y.parts]
                    assert max(extents) - min(extents) <= 1
                    assert sum(extents) == array.shape[second]


def test_a_product_is_split_by_columns_and_then_by_rows() -> None:
    """What tensor parallelism does: no data pass between the two products, one sum behind them."""
    ledger = Ledger()
    device = Device.from_driver(CheckedDriver(Device.host().driver, ledger))
    rng = np.random.default_rng(0)
    x, up, down = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((64, 96), (96, 128), (128, 32)))
    with device, Mesh([device] * 2) as mesh:
        tokens = mesh.replicate(x).sync()
        columns, rows = mesh.shard(up, axis=1).sync(), mesh.shard(down, axis=0).sync()
        hidden = mesh.map(matmul, tokens, columns, layout=1)
        result = hidden.then(lambda h: mesh.map(matmul, h, rows, layout=PARTIAL)).sync()
        assert result.layout == PARTIAL
        np.testing.assert_array_equal(result.to_numpy().sync(), x @ up @ down)
        # A sum may be split at once.
        again = hidden_of(mesh, tokens, columns, rows).then(lambda y: y.reshard(1)).sync()
        assert [part.shape for part in again.parts] == [(64, 16), (64, 16)]
        np.testing.assert_array_equal(again.to_numpy().sync(), x @ up @ down)
    assert ledger.uses > 20
    assert not ledger.races


def test_reading_partial_sums_leaves_them_as_they_are() -> None:
    with Mesh([Device.host()] * 3) as mesh:
        x = mesh.shard(np.arange(6, dtype=np.float32).reshape(3, 2), axis=0).sync()
        sums = mesh.map(lambda part: part.dup(), x, layout=PARTIAL).sync()
        for read in (sums.numpy, sums.numpy, lambda: sums.to_numpy().sync(), lambda: sums.reshard(None).sync().numpy()):
            np.testing.assert_array_equal(read(), [[6.0, 9.0]])


# ---- several processes: here ranks that joined, with a thread for each --------------------------------------------


def on_each_rank(program: Callable[[Mesh], Any]) -> list[Any]:
    """What a program yields or raises on each of three ranks, which run it at the same time."""
    ranks = joined().ranks

    def run(rank: Communicator) -> Any:
        with rank, Device.host() as cpu, cpu.new_stream():
            try:
                return program(Mesh(rank))
            except ValueError as error:
                return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def test_processes_have_a_tensor_in_every_layout() -> None:
    """Of 5 and 4 elements, which three ranks cannot share evenly."""
    array = np.arange(5 * 4 * 3).reshape(5, 4, 3)

    def program(mesh: Mesh) -> list[tuple[int, ...]]:
        shapes: list[tuple[int, ...]] = []
        for first in (None, 0, 1):
            x = (mesh.replicate(array) if first is None else mesh.shard(array, axis=first)).sync()
            for second in (None, 0, 1):
                y = x.reshard(second).sync()
                assert (x.shape, y.shape, len(y.parts), len(mesh)) == (array.shape, array.shape, 1, 3)
                np.testing.assert_array_equal(y.to_numpy().sync(), array)
                shapes.append(y.parts[0].shape)
        assert repr(x) == "<Sharded i64[5, 4, 3] over 3 devices, split along axis 1>"
        return shapes

    for rank, shapes in enumerate(on_each_rank(program)):
        rows, columns = [(1, 2, 2)[rank], (1, 1, 2)[rank]]
        assert shapes == [(5, 4, 3), (rows, 4, 3), (5, columns, 3)] * 3


def test_processes_split_products_by_columns_and_rows() -> None:
    """How the columns of the first are split follows from its weights, so the rows of the second fit."""
    rng = np.random.default_rng(0)
    x, up, down = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((16, 24), (24, 50), (50, 8)))

    def program(mesh: Mesh) -> Any:
        tokens, columns = mesh.replicate(x).sync(), mesh.shard(up, axis=1).sync()
        rows = mesh.shard(down, axis=0).sync()
        hidden = mesh.map(matmul, tokens, columns, layout=1).sync()
        assert (hidden.shape, hidden.extents) == ((16, 50), (16, 17, 17))
        return mesh.map(matmul, hidden, rows, layout=PARTIAL).then(lambda y: y.to_numpy()).sync()

    for result in on_each_rank(program):
        np.testing.assert_array_equal(result, x @ up @ down)


def test_processes_say_how_long_an_axis_is_where_no_argument_does() -> None:
    def program(mesh: Mesh) -> Any:
        (rank,) = mesh.communicator.ranks
        made = mesh.map(lambda: api.full(float(rank), (2, 3)), layout=0, extent=6).sync()
        np.testing.assert_array_equal(made.to_numpy().sync()[:, 0], [0, 0, 1, 1, 2, 2])
        with pytest.raises(ArgumentError, match="an axis of 7 elements has parts of"):
            mesh.map(lambda: api.full(0.0, (1, 3)), layout=0, extent=7).sync()
        return mesh.map(lambda: api.full(0.0, (2, 3)), layout=0).sync()

    for error in on_each_rank(program):
        assert "have [2] elements along axis 0" in str(error)
        assert "pass extent=, the elements of the whole axis" in str(error)


def hidden_of(mesh: Mesh, tokens: Sharded, columns: Sharded, rows: Sharded) -> Any:
    hidden = mesh.map(matmul, tokens, columns, layout=1)
    return hidden.then(lambda h: mesh.map(matmul, h, rows, layout=PARTIAL))


def test_what_is_no_tensor_of_the_mesh_is_passed_as_it_is() -> None:
    with Mesh([Device.host()] * 2) as mesh:
        x = mesh.shard(np.arange(6, dtype=np.float32)).sync()
        y = mesh.map(lambda part, factor: api.full(factor, part.shape), x, 3.0).sync()
        np.testing.assert_array_equal(y.to_numpy().sync(), np.full(6, 3, np.float32))
        assert repr(y) == "<Sharded f32[6] over 2 devices, split along axis 0>"


WRONG: list[Any] = ["partal", 1.0, "0", PARTIAL]
REFUSED: list[tuple[Callable[[Mesh], object], type[Exception], str]] = [
    (lambda mesh: mesh.shard(np.zeros((4, 1)), axis=1), ArgumentError, "1 elements cannot be split over 2 devices"),
    (lambda mesh: mesh.shard(np.zeros(4), axis=1), ArgumentError, "axis 1 of an array of 1 axes"),
    (lambda mesh: mesh.replicate(np.zeros(4)).sync().reshard(2), ArgumentError, "axis 2 of a tensor of 1 axes"),
    (lambda mesh: mesh.map(lambda x: x, 3), ArgumentTypeError, "expected <lambda> to return an operation, got int"),
    (lambda mesh: mesh.map(api.zeros, 3, layout=WRONG[0]), ArgumentTypeError, "an axis, PARTIAL or None, got 'partal'"),
    (lambda mesh: mesh.map(api.zeros, 3, layout=WRONG[1]), ArgumentTypeError, "an axis, PARTIAL or None, got 1.0"),
    (lambda mesh: mesh.shard(np.zeros(4), axis=WRONG[2]), ArgumentTypeError, "shard: expected an axis, got '0'"),
    (lambda mesh: mesh.replicate(np.zeros(4)).sync().reshard(WRONG[3]), ArgumentTypeError, "an axis or None"),
    (lambda mesh: Mesh([]), ValueError, "one or more"),
    (
        lambda mesh: mesh.map(value, Mesh([Device.host()] * 2).replicate(np.zeros(4)).sync()),
        ArgumentError,
        "on another mesh",
    ),
    (
        lambda mesh: mesh.map(lambda x: api.zeros((len(x), len(x))), mesh.shard(np.zeros(5)).sync()).sync(),
        ArgumentError,
        "agree in all axes but 0, got",
    ),
    (lambda mesh: spread([value(1)], []), ValueError, "a device for each operation, got 1 and 0"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_refused(case: int) -> None:
    call, kind, text = REFUSED[case]
    with Mesh([Device.host()] * 2) as mesh, pytest.raises(kind, match=text):
        call(mesh)


def test_a_function_that_fails_for_one_device_leaves_nothing_lent() -> None:
    x = api.zeros((4,)).sync()
    with Mesh([Device.host()] * 2) as mesh:
        for wrong in (ValueError("for this device"), "no operation"):
            results = iter([api.fill(x, 7.0), wrong])

            def function(results: Iterator[Any] = results) -> Any:
                result = next(results)
                if isinstance(result, ValueError):
                    raise result
                return result

            with pytest.raises(ValueError) as caught:
                mesh.map(function)
            assert api.fill(x, 1.0).sync() is x, caught  # while the error is kept, and with it its frames


def test_a_failure_on_one_device_is_the_operations() -> None:
    def fail() -> int:
        raise ValueError("this part")

    with pytest.raises(ValueError, match="this part"):
        spread([value(1), value(2).map(lambda _: fail())], [Device.host()] * 2).sync()


def test_operations_made_before_a_failure_lend_nothing() -> None:
    with Mesh([Device.host()] * 2) as mesh:
        x = mesh.shard(np.zeros(4, np.float32)).sync()
        results = iter([api.fill(x.parts[0], 1.0), None])
        wrong: Any = None
        with pytest.raises(ArgumentTypeError, match="map: expected a function of the parts, got None"):
            mesh.map(wrong, x)
        with pytest.raises(ArgumentTypeError, match="to return an operation, got NoneType"):
            mesh.map(lambda part: next(results), x)  # type: ignore[arg-type,return-value]
        api.fill(x.parts[0], 2.0).sync()  # while the traceback may hold the first one


def test_only_axes_of_the_own_mesh_are_resharded() -> None:
    with Mesh([Device.host()] * 2) as mesh, Mesh([Device.host()] * 3) as other:
        x = mesh.shard(np.arange(6.0)).sync()
        with pytest.raises(ArgumentError, match="is on another mesh"):
            other.reshard(x, None)
        with pytest.raises(ArgumentTypeError, match="expected an axis or None, got 'partial'"):
            mesh.reshard(x, "partial")  # type: ignore[arg-type]
