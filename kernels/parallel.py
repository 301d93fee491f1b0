"""Programs for several ranks, their communication under their products: a layer in parts, a pipeline, gradients.

Each is what one rank does. Products are on one stream of its device, collectives and messages on others. The memory
that both use orders them: no event and no wait is written here. `GraphedSums` repeats such a program at the cost of
some launches of graphs.
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
"""A tensor, or what `multiply` takes in place of one."""

Multiply = Callable[[Any, Any], DeviceOp[Any]]


def streams(rank: Communicator, count: int, *, overlap: bool = True) -> list[SingleStream]:
    """Streams of the rank's device: the first for products, the others for collectives.

    Products leave the multiprocessors free that collectives may take (`Communicator.max_ctas`). Where nothing is to
    overlap, all are one and the same stream.
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

    Each rank has some columns of `up` and the same rows of `down`, so its result is a part of a sum. The sum over all
    ranks of one piece of the rows is made while the next piece is multiplied. A piece is enqueued while the next one's
    operations are made, so that the device begins with the first.

    Args:
        rank: this rank.
        rows: pieces of x, each of shape (rows, width), the same on all ranks; lent.
        up: this rank's columns, of shape (width, part); lent.
        down: this rank's rows, of shape (part, width); lent.
        multiply: the product.
        overlap: False for sums on the stream of the products, which then wait for them.
        last: the same rank of a communicator for the last sum, which no product is beside: it may take all
            multiprocessors. `rank` itself by default.

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
    """One stage of a pipeline: rank i multiplies what comes from rank i - 1, and sends the result to rank i + 1.

    Stages work at the same time, on different pieces. A piece arrives while the one before it is multiplied, and
    leaves while the next one is.

    Args:
        rank: this rank, which is the stage's number.
        rows: on rank 0 the pieces, each of shape (rows, width); lent. On the others tensors of these pieces' shapes,
            into which they arrive.
        weight: this stage's, of shape (width, next width); lent.
        multiply: the product.
        overlap: False for messages on the stream of the products.

    Returns:
        This stage's results; the last stage has the pipeline's.
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
    """One step of data-parallel training: each gradient is added up over the ranks while the next is computed.

    A gradient is enqueued before the one behind the next is made. So a generator lets the device begin with the first.

    Args:
        rank: this rank, which has some of the examples.
        gradients: operations that yield this rank's gradients, in the order in which they can be computed.
        update: makes the operation that changes the weights, of the sums over all ranks.
        on: a stream for the products and one for the sums, as of `streams`.
        last: the same rank of a communicator for the last sum, as in `split_layer`.

    Returns:
        What the update yields.
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
    """Results that are added up over the ranks, each under the operation of the next, recorded to be repeated.

    Each operation and each sum is a graph. To enqueue all of them takes Python some ten microseconds for each, where an
    operation that is made anew takes hundreds. Their memory stays where it is, and `update` writes new inputs.

    Args:
        rank: this rank.
        operations: each yields a tensor that is added up; none has run. All are recorded here.
        last: the same rank of a communicator for the last sum, as in `split_layer`.

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
        """Enqueue all of it, behind what uses its memory; does not wait."""
        for launch in self._launches:
            launch()

    def update(self, number: int, operation: DeviceOp[T]) -> T:
        """Enqueue an operation that writes what the given one of the operations uses, and no other of them."""
        return self._graphs[2 * number].update(operation)

    def wait(self) -> None:
        """Wait until what is enqueued is done. Raises its first error; the next call begins without it."""
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
    """Each item, and whether it is the last. An item is taken before the one ahead of it is given."""
    ahead: list[T] = []
    for item in items:
        if ahead:
            yield ahead.pop(), False
        ahead.append(item)
    for item in ahead:
        yield item, True
