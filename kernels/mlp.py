"""A classifier of two layers, trained on the ranks of a communicator: each has some of the examples.

Each layer's gradient is added up over the ranks as soon as it is computed, while the gradient of the layer before it is
still being computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import cutile as ct
from cuda_async import DeviceOp
from cuda_async import zip as zip_ops
from cuda_async.collective import Communicator
from cutile import Mut, Tensor, api, f32
from kernels.gemm import matmul
from kernels.parallel import streams, sum_gradients

Array = npt.NDArray[np.float32]

ROWS, COLUMNS = 64, 64
"""Extents of a tile of the element-wise kernels; `cross_entropy` has whole rows."""


@ct.entry
def cross_entropy(gradient: Mut, loss: Mut, scores: Tensor, truth: Tensor, share: f32):
    """loss = -log(softmax(scores)) of the true class, and its gradient with respect to the scores; both times `share`.

    `truth` has a row for each example, with 1 for the true class and else 0.
    """
    rows, _ = gradient.shape
    x, t = ct.load_tile_like(scores, gradient), ct.load_tile_like(truth, gradient)
    shifted = x - ct.reduce_max(x, 1).reshape((rows, 1))
    e = ct.exp(shifted)
    total = ct.reduce_sum(e, 1)
    gradient.store(share * (e / total.reshape((rows, 1)) - t))
    loss.store(share * (ct.log(total) - ct.reduce_sum(shifted * t, 1)))


@ct.entry
def relu_gradient(y: Mut, hidden: Tensor):
    """y where the hidden unit was active, else 0."""
    y.store(ct.select(ct.load_tile_like(hidden, y) > 0.0, y.load(), 0.0))


@ct.entry
def descend(weight: Mut, gradient: Tensor, rate: f32):
    """weight -= rate * gradient."""
    weight.store(weight.load() - rate * ct.load_tile_like(gradient, weight))


def first_weights(features: int, hidden: int, classes: int, seed: int = 0) -> tuple[Array, Array]:
    """Random weights of both layers, of shapes (features, hidden) and (hidden, classes)."""
    rng = np.random.default_rng(seed)
    shapes = ((features, hidden), (hidden, classes))
    up, down = (rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0])) for shape in shapes)
    return up, down


@dataclass
class Trainer:
    """One rank's part of the training.

    Args:
        rank: this rank.
        images: all examples, of shape (n, features); the rank takes every `world`-th.
        labels: their classes, of shape (n,).
        weights: the weights of both layers, from `first_weights` or `numpy_weights`.
        overlap: False to run the sums of gradients on the stream of the products.

    Example:
        >>> import asyncio
        >>> from cuda_async import Device
        >>> images, labels = np.eye(4, dtype=np.float32), np.arange(4)
        >>> async def main(ranks):
        ...     trainers = [Trainer(ranks[i], images, labels, first_weights(4, 8, 4)) for i in range(2)]
        ...     losses = await asyncio.gather(*(trainer.train(20, 2.0) for trainer in trainers))
        ...     return losses[0] < 0.2, losses[0] == losses[1]
        >>> with Device.host() as cpu, Communicator.of([cpu, cpu]) as ranks:
        ...     asyncio.run(main(ranks))
        (True, True)
    """

    rank: Communicator
    images: Array
    labels: npt.NDArray[np.integer[Any]]
    weights: tuple[Array, Array]
    overlap: bool = True
    _up: Tensor = field(init=False)
    _down: Tensor = field(init=False)
    _x: Tensor = field(init=False)
    _truth: Tensor = field(init=False)

    def __post_init__(self) -> None:
        rank = self.rank
        mine = slice(rank.rank, None, rank.world)
        truth = np.eye(self.weights[1].shape[1], dtype=np.float32)[self.labels[mine]]
        arrays = (*self.weights, self.images[mine].astype(np.float32), truth)
        self._streams = streams(rank, 2, overlap=self.overlap)
        tensors = [api.from_numpy(array).sync_on(self._streams[0].stream) for array in arrays]
        self._up, self._down, self._x, self._truth = tensors

    async def train(self, steps: int, rate: float) -> float:
        """Take steps down the gradient of all examples' mean loss.

        Returns:
            The mean loss of all examples before the last step, the same on each rank.
        """
        loss = self._truth
        for _ in range(steps):
            loss = await self._step(rate)
        host = await loss.to_numpy().schedule(self._streams[0])
        mine = await api.full(float(host.sum()), (1,)).schedule(self._streams[0])
        total = await self.rank.all_reduce(mine).then(lambda x: x.to_numpy()).schedule(self._streams[0])
        return float(total[0])

    async def _step(self, rate: float) -> Tensor:
        """One step down; the loss of each of this rank's examples before it."""
        x, up, down = self._x, self._up, self._down
        hidden = matmul(x, up, activation="relu").shared()
        error = hidden.then(lambda h: matmul(h, down)).then(self._error).shared()
        ends = zip_ops(hidden, error).shared()
        of_down = ends.then(lambda both: matmul(both[0].T, both[1][0]))
        of_up = ends.then(lambda both: _back(both[1][0], down, both[0])).then(lambda e: matmul(x.T, e))
        await sum_gradients(
            self.rank,
            (of_down, of_up),
            lambda sums: zip_ops(_descend(down, sums[0], rate), _descend(up, sums[1], rate)),
            on=self._streams,
        )
        return await error.map(lambda result: result[1]).schedule(self._streams[0])

    def _error(self, scores: Tensor) -> DeviceOp[tuple[Tensor, Tensor]]:
        rows, classes = scores.shape
        gradient, loss = api.empty((rows, classes), f32), api.empty((rows,), f32)
        op = cross_entropy(
            gradient.partition((ROWS, classes)),
            loss.partition((ROWS,)),
            scores,
            self._truth,
            1.0 / len(self.images),
        )
        return op.map(lambda result: (result.gradient.unpartition(), result.loss.unpartition()))

    async def numpy_weights(self) -> tuple[Array, Array]:
        """Both layers' weights, on the host: what a checkpoint keeps."""
        up = await self._up.to_numpy().schedule(self._streams[0])
        return up, await self._down.to_numpy().schedule(self._streams[0])


def _back(error: Tensor, down: Tensor, hidden: Tensor) -> DeviceOp[Tensor]:
    """The error of the hidden layer: `error @ down.T` if a unit was active, else 0."""
    op = matmul(error, down.T).then(lambda y: relu_gradient(y.partition((ROWS, COLUMNS)), hidden))
    return op.first().unpartition()


def _descend(weight: Tensor, gradient: Tensor, rate: float) -> DeviceOp[Any]:
    return descend(weight.mut.partition((ROWS, COLUMNS)), gradient, rate)
