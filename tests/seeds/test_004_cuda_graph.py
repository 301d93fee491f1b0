"""The source of the graph module: its examples, its table of what happens inside a scope, and `Module`."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_async import CudaGraph, Device, DeviceOp, NotReadyError, ReentrancyError, Stream, value
from cuda_async.graph import Module
from cutile import Tensor, api, f32
from tests.seeds.kernels import gemm, increment, scale


def test_capture_and_replay(device: Device, stream: Stream) -> None:
    source = api.ones((32,), f32).sync_on(stream)
    bufs = api.zeros((32,), f32).sync_on(stream)
    forward_op = scale(bufs.mut.partition((8,)), 2.0, source).then(
        lambda out: increment(bufs.mut.partition((8,))).map(lambda _: out)
    )
    graph = CudaGraph.capture(stream, forward_op)
    assert graph.stream is stream
    taken = graph.take_output()
    assert taken is not None
    assert taken.x is source
    assert bufs.to_host_vec().sync_on(stream).tolist() == [0] * 32
    for _ in range(3):
        graph.launch().sync_on(stream)
        assert bufs.to_host_vec().sync_on(stream).tolist() == [3] * 32
    graph.close()


def test_the_output_is_handles_until_the_first_launch(device: Device, stream: Stream) -> None:
    graph = api.zeros((16,), f32).then(lambda t: increment(t.partition((4,))).first().unpartition()).graph_on(stream)
    output: Any = graph.take_output()
    assert output.shape == (16,)
    with pytest.raises(NotReadyError, match="has not been launched"):
        output.to_host_vec().sync_on(stream)
    graph.launch().sync_on(stream)
    assert output.to_host_vec().sync_on(stream).tolist() == [1] * 16
    assert graph.take_output() is None
    graph.close()


def test_update_before_launch_is_ordered_and_yields_the_operations_output(device: Device, stream: Stream) -> None:
    h_input, out = api.zeros((8,), f32).sync_on(stream), api.zeros((8,), f32).sync_on(stream)
    new_embedding = api.arange(8, f32).sync_on(stream)
    graph = scale(out.mut.partition((4,)), 10.0, h_input).graph_on(stream)
    assert graph.update(api.memcpy(h_input, new_embedding)) is None
    assert graph.update(value("output")) == "output"
    graph.launch().sync_on(device.new_stream())  # another stream: behind the update all the same
    assert out.to_host_vec().sync_on(stream).tolist() == [10.0 * n for n in range(8)]
    graph.close()


def test_what_is_written_by_one_record_is_read_by_the_next(device: Device, stream: Stream) -> None:
    d, bn = 16, 4
    source, wq = api.ones((d, d), f32).sync_on(stream), api.ones((d, d), f32).sync_on(stream)
    norm, q = api.zeros((d, d), f32).sync_on(stream), api.zeros((d, d), f32).sync_on(stream)

    def record(s: Any) -> None:
        s.record(scale(norm.mut.partition((1, d)), 0.5, source))
        s.record(gemm(q.mut.partition((bn, bn)), norm, wq))

    graph = CudaGraph.scope(stream, record)
    graph.launch().sync_on(stream)
    assert (q.to_numpy().sync_on(stream) == d / 2).all()
    graph.close()


@pytest.mark.parametrize("where", ["the capture stream", "another stream", "the policy's stream"])
def test_nothing_runs_inside_a_scope(device: Device, stream: Stream, where: str) -> None:
    run = {
        "the capture stream": lambda: value(1).sync_on(stream),
        "another stream": lambda: value(1).sync_on(device.new_stream()),
        "the policy's stream": lambda: value(1).sync(),
    }[where]
    with pytest.raises(ReentrancyError):
        CudaGraph.scope(stream, lambda s: run())
    assert value(2).sync_on(stream) == 2  # the stream is usable


def test_an_error_in_the_closure_ends_the_capture(device: Device, stream: Stream) -> None:
    y = api.zeros((8,), f32).sync_on(stream)

    def fail(s: Any) -> None:
        s.record(increment(y.mut.partition((4,))))
        raise KeyError("in the closure")

    with pytest.raises(KeyError, match="in the closure"):
        CudaGraph.scope(stream, fail)
    increment(y.mut.partition((4,))).sync_on(stream)
    assert y.to_host_vec().sync_on(stream).tolist() == [1] * 8


class MyModel(Module[Tensor, Tensor]):
    """A model of one layer: captured when it is made, replayed by `forward`."""

    def __init__(self, d: int, stream: Stream) -> None:
        self.stream = stream
        self.h_input = api.zeros((d,), f32).sync_on(stream)
        self.output = api.zeros((d,), f32).sync_on(stream)
        self.graph = self.build_forward().graph_on(stream)

    def build_forward(self) -> DeviceOp[Any]:
        return scale(self.output.mut.partition((8,)), 2.0, self.h_input)

    def forward(self, input: Tensor) -> Tensor:
        self.graph.update(api.memcpy(self.h_input, input))
        self.graph.launch().sync_on(self.stream)
        return self.output


def test_a_module(device: Device, stream: Stream) -> None:
    model = MyModel(32, stream)
    for token in (1.0, 5.0):
        out = model.forward(api.full(token, (32,), f32).sync_on(stream))
        assert out.to_host_vec().sync_on(stream).tolist() == [2 * token] * 32
    model.graph.close()
