"""Programs for several ranks that overlap communication with products: a layer in parts, a pipeline, gradients.

Each function is the program of one rank. Products are on one stream of its device, collectives and messages on others.
The memory that both use orders them, so the programs have no events and no waits. `GraphedSums` repeats such a program
at the cost of some launches of graphs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from cuda_async import CudaGraph, DeviceOp, SingleStream, value
from cuda_async import zip as zip_ops
from cuda_async.collective import Communicator
from kernels.gemm import matmul

T = TypeVar("T")

Operand = TypeVar("Operand")
"""A tensor, or any other type that `multiply` takes and yields."""

Multiply = Callable[[Any, Any], DeviceOp[Any]]


def streams(rank: Communicator, count: int, *, overlap: bool = True) -> list[SingleStream]:
    """Streams of the rank's device: the first for products, the others for collectives.

    Products leave the multiprocessors free that collectives may take (`Communicator.max_ctas`). With `overlap=False`
    all of them are the same stream.
    """
    device = rank.devices[0]
    first = SingleStream(device, sm_margin=rank.max_ctas if overlap else 0)
    return [first, *(SingleStream(device) if overlap else first for _ in range(count - 1))]


async def split_layer(
    rank: Communicator,
    rows: Sequence[Operand],
    up: Operand,
    down: Operand,
    *,
    multiply: Multiply = matmul,
    overlap: bool = True,
    last: Communicator | None = None,
) -> list[Operand]:
    """Both products of a feed-forward layer, `x @ up @ down`, the weights split over the ranks.

    Each rank has some columns of `up` and the same rows of `down`, so its result is one term of a sum over the ranks.
    One piece of the rows is summed over the ranks while the next piece is multiplied. A piece is enqueued while Python
    makes the operations of the next one, so that the device begins with the first at once.

    Args:
        rank: this rank.
        rows: pieces of x, each of shape (rows, width), the same on all ranks; lent.
        up: this rank's columns, of shape (width, part); lent.
        down: this rank's rows, of shape (part, width); lent.
        multiply: the product.
        overlap: False to run the sums on the stream of the products, which then wait for them.
        last: this rank in another communicator, for the last sum. No product runs beside that sum, so its communicator
            may take all multiprocessors. `rank` itself by default.

    Returns:
        The pieces of the result, whole on every rank.

    Example:
        >>> from cuda_async import Device
        >>> from cutile import api
        >>> async def main(ranks):
        ...     one = await api.ones((4, 4))
        ...     sums = await asyncio.gather(*(split_layer(ranks[i], [one, one], one, one) for i in range(2)))
        ...     return (await sums[0][1].to_numpy())[0]
        >>> with Device.host() as cpu, Communicator.of([cpu, cpu]) as ranks:
        ...     asyncio.run(main(ranks))
        array([32., 32., 32., 32.], dtype=float32)
    """
    products, sums = streams(rank, 2, overlap=overlap)
    work: list[Any] = []
    for piece, is_last in _marked(rows):
        await asyncio.sleep(0)  # the loop enqueues the piece before
        part = multiply(piece, up).then(lambda hidden: multiply(hidden, down)).shared()
        total = part.clone().then((last if is_last and last else rank).all_reduce)
        work += [asyncio.ensure_future(op.schedule(stream)) for op, stream in ((part, products), (total, sums))]
    results = await asyncio.gather(*work)  # in this order: who comes first has what is shared on its stream
    return results[1::2]


async def pipeline(
    rank: Communicator,
    rows: Sequence[Operand],
    weight: Operand,
    *,
    multiply: Multiply = matmul,
    overlap: bool = True,
) -> list[Operand]:
    """One stage of a pipeline: rank i multiplies the pieces from rank i - 1, and sends the results to rank i + 1.

    Stages work at the same time, on different pieces. A piece arrives while the piece before it is multiplied, and
    leaves while the next piece is multiplied.

    Args:
        rank: this rank, which is the stage's number.
        rows: on rank 0 the pieces, each of shape (rows, width); lent. On the other ranks tensors of the pieces' shapes,
            into which the pieces arrive.
        weight: the weight of this stage, of shape (width, next width); lent.
        multiply: the product.
        overlap: False to send and receive on the stream of the products.

    Returns:
        This stage's results; those of the last stage are the pipeline's.
    """
    products, arrivals, departures = streams(rank, 3, overlap=overlap)
    work: list[Any] = []
    places: list[int] = []
    for piece in rows:
        x = value(piece) if rank.rank == 0 else rank.recv(piece, source=rank.rank - 1)
        here = x.shared()
        if rank.rank > 0:
            work.append(here.clone().schedule(arrivals))
        result = here.then(lambda x: multiply(x, weight)).shared()
        places.append(len(work))
        work.append(result.clone().schedule(products))
        if rank.rank < rank.world - 1:
            work.append(result.then(lambda y: rank.send(y, to=rank.rank + 1)).schedule(departures))
    results = await asyncio.gather(*work)  # in this order: who comes first has what is shared on its stream
    return [results[place] for place in places]


async def sum_gradients(
    rank: Communicator,
    gradients: Iterable[DeviceOp[Operand]],
    update: Callable[[tuple[Operand, ...]], DeviceOp[T]],
    *,
    on: Sequence[SingleStream],
    last: Communicator | None = None,
) -> T:
    """One step of data-parallel training: each gradient is summed over the ranks while the next one is computed.

    Each gradient is enqueued while later ones are still being made. So if `gradients` is a generator, the device begins
    with the first at once.

    Args:
        rank: this rank, which has some of the examples.
        gradients: operations that yield this rank's gradients, in the order in which they can be computed.
        update: a function of the summed gradients that returns the operation which changes the weights.
        on: a stream for the products and one for the sums, as from `streams`.
        last: this rank in another communicator, for the last sum, as in `split_layer`.

    Returns:
        The result of the update.
    """
    products, sums = on
    work: list[Any] = []
    totals: list[DeviceOp[Operand]] = []
    for gradient, is_last in _marked(gradients):
        await asyncio.sleep(0)  # the loop enqueues the gradient before
        part = gradient.shared()
        total = part.clone().then((last if is_last and last else rank).all_reduce).shared()
        work += [asyncio.ensure_future(op.schedule(stream)) for op, stream in ((part, products), (total, sums))]
        totals.append(total)
    step: Any = zip_ops(*totals).then(update)
    return (await asyncio.gather(*work, step.schedule(products)))[-1]


class GraphedSums(Generic[Operand]):
    """Operations whose results are summed over the ranks, recorded as graphs so that they can be repeated.

    Each sum overlaps with the next operation. Each operation and each sum is a graph: enqueueing one takes Python some
    ten microseconds, where an operation that is made anew takes hundreds. The graphs use fixed memory, and `update`
    writes new inputs.

    Args:
        rank: this rank.
        operations: each yields a tensor that is summed; none has run. All are recorded here.
        last: this rank in another communicator, for the last sum, as in `split_layer`.

    Attributes:
        sums: the tensors with the sums; without data before the first call.

    Example:
        >>> from cuda_async import Device
        >>> from cutile import api
        >>> with Device.host() as cpu, Communicator.of([cpu]) as rank:
        ...     x = api.ones((4, 4)).sync()
        ...     with GraphedSums(rank, [matmul(x, x), matmul(x, x)]) as layer:
        ...         for _ in range(2):
        ...             layer()
        ...         layer.wait()
        ...         layer.sums[1].to_numpy().sync()[0]
        array([4., 4., 4., 4.], dtype=float32)
    """

    def __init__(
        self, rank: Communicator, operations: Iterable[DeviceOp[Operand]], *, last: Communicator | None = None
    ) -> None:
        device = rank.devices[0]
        products, sums = device.new_stream(sm_margin=rank.max_ctas), device.new_stream()
        self.sums: list[Operand] = []
        self._graphs: list[CudaGraph[Operand]] = []
        self._streams = products, sums
        for operation, is_last in _marked(operations):
            graph = operation.graph_on(products)
            part: Any = graph.take_output()
            total = (last if is_last and last else rank).all_reduce(part).graph_on(sums)
            self.sums.append(part)
            self._graphs += [graph, total]
        self._launches = [graph.launch().bind(graph.stream) for graph in self._graphs]

    def __call__(self) -> None:
        """Enqueue all operations and sums, behind other uses of their memory; does not wait."""
        for launch in self._launches:
            launch()

    def update(self, number: int, operation: DeviceOp[T]) -> T:
        """Enqueue an operation that writes memory which operation `number` uses, and none of the others."""
        return self._graphs[2 * number].update(operation)

    def wait(self) -> None:
        """Wait until all enqueued work is done. Raises its first error; the next call starts without errors."""
        errors: list[Exception] = []
        for stream in self._streams:  # all of them: the next wait for a stream would raise an error that this one left
            try:
                stream.synchronize()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Release the graphs."""
        for graph in self._graphs:
            graph.close()

    def __enter__(self) -> GraphedSums[Operand]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _marked(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Yield each item, and whether it is the last; for that, the next item is taken first."""
    ahead: list[T] = []
    for item in items:
        if ahead:
            yield ahead.pop(), False
        ahead.append(item)
    for item in ahead:
        yield item, True
