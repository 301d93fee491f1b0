"""Programs for several ranks: their results on the CPU and on simulated devices, and what overlap saves there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from cuda_async import Device, DeviceOp, DriverError, ExecutionContext, with_context
from cuda_async.collective import Communicator, Network
from cuda_async.testing import CheckedDriver, Ledger, SimDriver
from cutile import Tensor, api
from kernels.gemm import matmul
from kernels.mlp import Trainer, first_weights
from kernels.parallel import GraphedSums, pipeline, split_layer
from tests.cuda_async.ranks import ENGINES, WORLD, outcome

Array = np.ndarray[Any, np.dtype[Any]]

PIECES = 4
LAUNCH_S = 1e-3
BYTES_PER_S = 1e6
"""A network so slow that a piece of 16 x 32 f32 (2 KiB) takes twice a launch."""


def launches_alone(kind: str, size: int) -> float:
    """Seconds of work on a simulated device, whose kernels take as long as one another, and nothing else any time."""
    return LAUNCH_S if kind == "launch" else 0.0


def simulated(world: int) -> tuple[list[Device], list[SimDriver], Ledger]:
    first, ledger = SimDriver(seconds=launches_alone), Ledger()
    drivers = [first, *(SimDriver(ordinal=i, beside=first, seconds=launches_alone) for i in range(1, world))]
    return [Device.from_driver(CheckedDriver(driver, ledger)) for driver in drivers], drivers, ledger


def on(device: Device, *arrays: Array) -> list[Tensor]:
    return [api.from_numpy(np.ascontiguousarray(array)).sync_on(device.new_stream()) for array in arrays]


def back(device: Device, tensors: Sequence[Tensor]) -> Array:
    return np.concatenate([tensor.to_numpy().sync_on(device.new_stream()) for tensor in tensors])


def together(ranks: Communicator, program: Callable[[Communicator], Awaitable[Any]]) -> list[Any]:
    async def main() -> list[Any]:
        return await asyncio.gather(*(program(ranks[i]) for i in range(len(ranks))))

    return asyncio.run(main())


def layer(ranks: Communicator, overlap: bool) -> None:
    """Run a layer of two products on all ranks, and compare."""
    rng = np.random.default_rng(0)
    x, up, down = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((64, 24), (24, 48), (48, 32)))
    operands = [
        (on(device, *np.split(x, PIECES)), *on(device, columns, rows))
        for device, columns, rows in zip(
            ranks.devices, np.array_split(up, len(ranks), 1), np.array_split(down, len(ranks)), strict=True
        )
    ]
    results = together(ranks, lambda rank: split_layer(rank, *operands[rank.rank], overlap=overlap))
    for device, pieces in zip(ranks.devices, results, strict=True):
        np.testing.assert_array_equal(back(device, pieces), x @ up @ down)


def stages(ranks: Communicator, overlap: bool) -> None:
    """Run a pipeline with a stage on each rank, and compare."""
    rng = np.random.default_rng(1)
    x, *weights = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((64, 32), (32, 32), (32, 32)))
    rows = [on(device, *np.split(x if i == 0 else 0 * x, PIECES)) for i, device in enumerate(ranks.devices)]
    tensors = [on(device, weight)[0] for device, weight in zip(ranks.devices, weights, strict=True)]
    results = together(ranks, lambda rank: pipeline(rank, rows[rank.rank], tensors[rank.rank], overlap=overlap))
    np.testing.assert_array_equal(back(ranks.devices[-1], results[-1]), x @ weights[0] @ weights[1])


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("program", "world"), [(layer, 3), (stages, 2)])
def test_programs_are_right_on_the_cpu(program: Callable[..., None], world: int, overlap: bool) -> None:
    ledger = Ledger()
    device = Device.from_driver(CheckedDriver(Device.host().driver, ledger))
    with Communicator.of([device] * world) as ranks:
        program(ranks, overlap)
    assert ledger.uses > 20
    assert not ledger.races


def test_a_recorded_layer_is_right_each_time() -> None:
    """Ranks in threads of their own, as on GPUs in processes: what each enqueues waits for the others on the device."""
    rng = np.random.default_rng(2)
    x, up, down = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((64, 24), (24, 48), (48, 32)))
    ledger = Ledger()
    device = Device.from_driver(CheckedDriver(Device.host().driver, ledger))
    with Communicator.of([device] * 2) as ranks, ExitStack() as stack:
        layers: list[GraphedSums[Tensor]] = []
        rows: list[list[Tensor]] = []
        for i, (columns, part) in enumerate(zip(np.split(up, 2, 1), np.split(down, 2), strict=True)):
            weights = on(device, columns, part)
            rows.append(on(device, *np.split(x, PIECES)))
            products = (matmul(piece, weights[0]).then(lambda h, w=weights[1]: matmul(h, w)) for piece in rows[i])
            layers.append(stack.enter_context(GraphedSums(ranks[i], products)))
        for turn in range(3):
            for layer in layers:
                layer()
            for layer in layers:
                layer.wait()
                np.testing.assert_array_equal(back(device, layer.sums), (turn + 1) * x @ up @ down)
            changed = on(device, *np.split((turn + 2) * x, PIECES))
            for layer, pieces in zip(layers, rows, strict=True):
                for number, (piece, values) in enumerate(zip(pieces, changed, strict=True)):
                    layer.update(number, api.memcpy(piece.mut, values))
    assert ledger.uses > 100
    assert not ledger.races


@pytest.mark.parametrize("engine", ["host", "gpus"])
def test_a_recorded_layer_goes_on_after_a_failure(engine: str) -> None:
    """A product fails on one rank, and with it the sums: the next call makes both anew, though nobody awaits them."""
    ranks, is_broken = ENGINES[engine](), False

    def check(start: int, stop: int) -> None:
        if is_broken:
            raise DriverError(1, "BROKEN", "a kernel of this rank")

    def multiply(rank: int, x: Tensor) -> DeviceOp[Tensor]:
        def checked(context: ExecutionContext) -> DeviceOp[Tensor]:
            if rank == 1:
                context.stream.parallel_for(check, 1, 1)
            return matmul(x, x)

        return with_context(checked)

    layers: list[GraphedSums[Tensor]] = []
    for rank in ranks.ranks:
        x = on(rank.devices[0], np.ones((4, 4), np.float32))[0]
        layers.append(GraphedSums(rank, [multiply(rank.rank, x) for _ in range(3)]))
    errors = list[Exception | None]()
    for is_broken in (False, True, False, False):
        for layer in layers:
            layer()
        errors = [outcome(layer.wait) for layer in layers]
        if is_broken:
            assert isinstance(errors[1], DriverError)
        else:
            assert errors == [None] * WORLD
            for layer in layers:
                for total in back(ranks.devices[0], layer.sums):
                    np.testing.assert_array_equal(total, WORLD * 4)
    for rank, layer in zip(ranks.ranks, layers, strict=True):
        layer.close()
        rank.close()


def virtual_seconds(program: Callable[..., None], overlap: bool) -> float:
    devices, drivers, ledger = simulated(2)
    with Communicator.of(devices, network=Network(0.0, BYTES_PER_S)) as ranks:
        program(ranks, overlap)
    assert not ledger.races
    return max(driver.time for driver in drivers)


def test_sums_of_a_layer_hide_under_the_products_of_the_next_piece() -> None:
    total, piece = virtual_seconds(layer, True), 2 * LAUNCH_S
    transfer = 2048 / BYTES_PER_S  # an all-reduce of two ranks: half of the bytes, twice
    assert virtual_seconds(layer, False) == pytest.approx(PIECES * (piece + transfer))
    assert total == pytest.approx(piece + PIECES * transfer)
    assert total < 0.7 * PIECES * (piece + transfer)


def test_messages_of_a_pipeline_hide_under_its_products() -> None:
    transfer = 2048 / BYTES_PER_S
    assert virtual_seconds(stages, True) == pytest.approx(LAUNCH_S + PIECES * transfer + LAUNCH_S)
    assert virtual_seconds(stages, False) == pytest.approx(PIECES * (LAUNCH_S + transfer) + LAUNCH_S)


# ---- training -----------------------------------------------------------------------------------------------------

STEPS, RATE = 30, 1.0


def digits() -> tuple[Array, Array]:
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels


def by_numpy(images: Array, labels: Array, steps: int) -> float:
    """The mean loss before the last step, in float64."""
    up, down = (weight.astype(np.float64) for weight in first_weights(64, 32, 10))
    truth = np.eye(10)[labels]
    loss = 0.0
    for _ in range(steps):
        hidden = np.maximum(images @ up, 0)
        scores = hidden @ down
        e = np.exp(scores - scores.max(1, keepdims=True))
        share = e / e.sum(1, keepdims=True)
        loss = float(-np.log((share * truth).sum(1)).mean())
        error = (share - truth) / len(images)
        back_up = images.T @ (error @ down.T * (hidden > 0))
        down = down - RATE * hidden.T @ error
        up = up - RATE * back_up
    return loss


def train(ranks: Communicator, images: Array, labels: Array, steps: int, overlap: bool = True) -> list[float]:
    weights = first_weights(64, 32, 10)
    return together(ranks, lambda rank: Trainer(rank, images, labels, weights, overlap).train(steps, RATE))


def test_digits_are_learned_by_several_ranks_as_by_one() -> None:
    images, labels = digits()
    losses: list[float] = []
    for world in (1, 2, 3):  # 1797 images: 899 and 898, or 599 each
        with Communicator.of([Device.host()] * world) as ranks:
            (loss, *others) = train(ranks, images, labels, STEPS)
        assert others == [loss] * (world - 1)
        losses.append(loss)
    np.testing.assert_allclose(losses, by_numpy(images, labels, STEPS), rtol=2e-5)
    assert losses[0] < 0.5 < 2.2 < by_numpy(images, labels, 1)


def test_gradients_are_added_up_while_others_are_computed() -> None:
    """The second layer's, 1280 bytes, under the three kernels of the first layer's."""
    images, labels = (array[:32] for array in digits())
    seconds: list[float] = []
    for overlap in (True, False):
        devices, drivers, ledger = simulated(2)
        with Communicator.of(devices, network=Network(0.0, BYTES_PER_S)) as ranks:
            (loss, other) = train(ranks, images, labels, 1, overlap)
        assert loss == other
        assert not ledger.races
        seconds.append(max(driver.time for driver in drivers))
    assert seconds[1] - seconds[0] == pytest.approx(1280 / BYTES_PER_S)
