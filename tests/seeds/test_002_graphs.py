"""The host API page's section on graphs: the combinator form, the scope form, and what a scope records."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_async import CudaGraph, Device, DeviceOp, Stream, value
from cutile import api, f32
from tests.seeds.kernels import increment, scale


def test_the_combinator_form(device: Device, stream: Stream) -> None:
    input_buffer = api.zeros((64,), f32).sync_on(stream)
    buffers = api.zeros((64,), f32).sync_on(stream).shared()

    def build_forward(arc: Any) -> DeviceOp[Any]:
        return scale(arc.try_partition((16,)), 2.0, input_buffer)

    graph = build_forward(buffers).graph_on(stream)
    output = graph.take_output()
    assert output is not None
    for token in (1.0, 2.0, 3.0):
        graph.update(api.memcpy(input_buffer, api.full(token, (64,), f32).sync_on(stream)))
        graph.launch().sync_on(stream)
        tensor = output.y.unpartition()
        assert tensor.to_host_vec().sync_on(stream).tolist() == [2 * token] * 64
        output = output._replace(y=tensor.partition((16,)))
    graph.close()


def test_the_scope_form(device: Device, stream: Stream) -> None:
    d = 1024
    output = api.zeros((d,), f32).sync_on(stream)
    between = api.zeros((d,), f32).sync_on(stream)
    weights = api.ones((d,), f32).sync_on(stream)

    def record(s: Any) -> None:
        s.record(scale(between.mut.partition((128,)), 3.0, weights))
        s.record(scale(output.mut.partition((64,)), 2.0, between))  # written by the first, read by the second

    graph = CudaGraph.scope(stream, record)
    assert output.to_host_vec().sync_on(stream).tolist() == [0] * d  # recorded, not run
    graph.launch().sync_on(stream)
    assert output.to_host_vec().sync_on(stream).tolist() == [6] * d
    graph.close()


def test_graph_nodes_and_what_is_none(device: Device, stream: Stream) -> None:
    x, y = api.ones((8,), f32).sync_on(stream), api.zeros((8,), f32).sync_on(stream)
    with CudaGraph.scope(stream) as s:
        assert s.record(value(42)) == 42
        s.record(api.memcpy(y, x))
        s.record(increment(y.mut.partition((4,))))
    s.graph.launch().sync_on(stream)
    assert y.to_host_vec().sync_on(stream).tolist() == [2] * 8
    s.graph.close()
    for op in (api.zeros((8,), f32), api.ones((8,), f32), x.dup()):
        with pytest.raises(TypeError, match="no graph node"), CudaGraph.scope(stream) as s:
            s.record(op)
        op.discard()


def test_a_graph_launches_on_another_stream(device: Device, stream: Stream) -> None:
    y = api.zeros((8,), f32).sync_on(stream)
    graph = increment(y.mut.partition((4,))).graph_on(stream)
    for other in (device.new_stream(), stream, device.new_stream()):
        graph.launch().sync_on(other)
    assert y.to_host_vec().sync_on(stream).tolist() == [3] * 8
    graph.close()
