"""Tensors as the arguments of a real kernel: lent, named in errors, given back."""

from __future__ import annotations

from typing import Any

import pytest

import cutile as ct
from cuda_async import Device, OwnershipError
from cutile import Mut, api, f32
from cutile.errors import ArgumentError


@ct.entry
def shift(y: Mut, a: f32, x: ct.Tensor):
    """y = x + a."""
    y.store(ct.load_tile_like(x, y) + a)


@pytest.fixture
def x(host: Device) -> api.Tensor:
    return api.arange(32, f32).reshape((4, 8)).sync()


@pytest.fixture
def y(host: Device) -> api.Tensor:
    return api.zeros((4, 8), f32).sync()


def test_you_get_back_what_you_put_in(x: api.Tensor, y: api.Tensor) -> None:
    out = shift(y.partition((2, 2)), 2.0, x).sync()
    assert out.x is x
    assert out.y.unpartition() is y
    assert y.to_host_vec().sync().tolist() == [2 + i for i in range(32)]


def test_a_chain_from_new_memory_to_the_host(x: api.Tensor) -> None:
    op = shift(api.zeros((4, 8), f32).partition((2, 2)), 1.0, x).first().unpartition().reshape(-1).to_host_vec()
    assert op.sync().tolist() == [1 + i for i in range(32)]


def test_views_are_read_and_written_in_place(x: api.Tensor, y: api.Tensor) -> None:
    shift(y[1:3].mut.partition((2, 4)), 0.0, x.T.dup().sync().T[:2]).sync()
    assert y[1:3].to_host_vec().sync().tolist() == list(range(16))
    assert y[0].to_host_vec().sync().tolist() == [0] * 8


def test_the_same_tensor_written_and_read_is_refused_by_name(x: api.Tensor) -> None:
    with pytest.raises(
        OwnershipError, match=r"shift: argument 'x': .* held by the partition made at .*test_launch\.py"
    ):
        shift(x.partition((2, 2)), 1.0, x)
    with pytest.raises(OwnershipError, match="argument 'x' would be read, but the same operation writes"):
        shift(x.mut.partition((2, 2)), 1.0, x)


def test_an_output_given_up_is_refused_by_name(x: api.Tensor, y: api.Tensor) -> None:
    part = y.partition((2, 2))
    part.unpartition()
    with pytest.raises(OwnershipError, match=r"shift: argument 'y': the partition .* was given up"):
        shift(part, 1.0, x)


def test_a_launch_that_fails_gives_the_tensor_back_though_the_error_is_kept(x: api.Tensor, y: api.Tensor) -> None:
    errors: list[BaseException] = []
    bad: list[tuple[Any, Any]] = [("two", x), (1.0, None)]
    for factor, source in bad:
        try:
            shift(y.partition((2, 2)), factor, source)
        except ArgumentError as error:
            errors.append(error)  # and its traceback, as a notebook does
        assert y.to_host_vec().sync().tolist() == [0] * 32
    assert len(errors) == 2


def test_a_partition_of_another_rank_is_refused_where_it_is_made(x: api.Tensor, y: api.Tensor) -> None:
    with pytest.raises(ArgumentError, match=r"partition shape: it must have 2 extents, .* got \(4,\)"):
        shift(y.partition(4), 1.0, x)
    assert y.to_host_vec().sync().tolist() == [0] * 32
