"""What the host knows of a tensor without asking the device: metadata, views, and what it refuses to pretend."""

from __future__ import annotations

import copy
import operator
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device, NotReadyError
from cutile import api, f32, i32
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host import hints
from cutile.launch.views import KernelInput, KernelOutput

Tensor = api.Tensor


@pytest.fixture
def x(host: Device) -> Tensor:
    return api.arange(32, f32).reshape((4, 8)).sync()


def test_metadata(x: Tensor, host: Device) -> None:
    assert (x.shape, x.strides, x.size, x.ndim, x.num_bytes) == ((4, 8), (8, 1), 32, 2, 128)
    assert x.dtype is f32
    assert x.device is host
    assert x.device_id() == 0
    assert x.device_pointer() == x.storage.address
    assert x.is_contiguous()
    assert isinstance(x, ct.Tensor)


def test_metadata_of_a_view(x: Tensor) -> None:
    view = x[1:, ::2]
    assert (view.shape, view.strides, view.size, view.num_bytes) == ((3, 4), (8, 2), 12, 48)
    assert view.device_pointer() == x.device_pointer() + 32
    assert view.offset == 32
    assert not view.is_contiguous()
    assert view.base is x


def test_offsets_accumulate(host: Device) -> None:
    x = api.arange(1024, i32).sync()
    assert x.slice(range(100, 200)).slice((10, 20)).to_host_vec().sync().tolist() == list(range(110, 120))
    matrix = x.view((32, 32))
    np.testing.assert_array_equal(
        matrix.slice([range(1, 3), range(2, 6)]).to_numpy().sync(), np.arange(1024).reshape(32, 32)[1:3, 2:6]
    )
    assert matrix.slice(slice(1, 3)).shape == (2, 32)
    assert matrix[1:3][0][2:4].view((2, 1)).to_numpy().sync().tolist() == [[34], [35]]


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("bounds", [(), (1,), (-2,), (1, 3), (None, -1), (3, 1), (-9, 9)])
def test_an_axis_and_bounds_are_cut_as_in_kernels(host: Device, axis: int, bounds: tuple[Any, ...]) -> None:
    values = np.arange(20, dtype=np.int32).reshape(4, 5)
    view = api.from_numpy(values).sync().slice(axis, *bounds)
    start, stop = (*bounds, None, None)[:2]
    spans = [slice(None), slice(None)]
    spans[axis] = slice(start, stop)
    np.testing.assert_array_equal(view.to_numpy().sync(), values[tuple(spans)])


def test_an_axis_that_is_not_there_is_named(host: Device) -> None:
    with pytest.raises(ArgumentError, match=r"slice: axis 2 of a tensor with 2 axes, of shape \(4, 8\)"):
        api.zeros((4, 8)).sync().slice(2, stop=3)


def test_a_view_can_be_read_row_by_row(x: Tensor) -> None:
    assert [row.to_host_vec().sync()[0] for row in x] == [0, 8, 16, 24]
    assert (len(x), len(x.T)) == (4, 8)
    with pytest.raises(TypeError, match="has no axes, and so no length"):
        len(x[0, 0])


def test_transposing(x: Tensor) -> None:
    wanted = np.arange(32).reshape(4, 8).T
    np.testing.assert_array_equal(x.T.to_numpy().sync(), wanted)
    assert (x.T.shape, x.T.strides) == ((8, 4), (1, 8))
    assert x.T.T.is_contiguous()
    np.testing.assert_array_equal(x.reshape((2, 2, 8)).transpose((1, -1, 0)).dup().to_numpy().sync(),
                                  np.arange(32).reshape(2, 2, 8).transpose(1, 2, 0))  # fmt: skip


def test_a_shape_may_be_given_as_its_extents_and_axes_one_by_one(x: Tensor) -> None:
    """As NumPy takes both; by operations, views and shared handles too."""
    assert x.reshape(2, -1).shape == x.view(2, 16).shape == (2, 16)
    assert x[1:3].reshape(2, 2, 4).shape == (2, 2, 4)
    assert x.reshape(2, 2, 8).transpose(1, -1, 0).strides == x.reshape((2, 2, 8)).transpose((1, -1, 0)).strides
    yielded = api.arange(32, f32).reshape(4, 8).transpose(1, 0).sync()
    np.testing.assert_array_equal(yielded.to_numpy().sync(), np.arange(32).reshape(4, 8).T)
    assert api.arange(32, f32).view(4, 8).sync().shape == (4, 8)
    with x.shared() as owner, owner.reshape(8, 4) as other:
        assert other.shape == (8, 4)


def test_what_is_neither_is_refused(x: Tensor) -> None:
    strange: Any = 8.0
    with pytest.raises(ArgumentTypeError, match=r"reshape: .* such as \(4, 8\), or its extents 4, 8, got \(4, 4\), 2"):
        x.reshape((4, 4), 2)
    for method in ("reshape", "view"):
        for dtype in (i32, "i32", np.int32, np.dtype(np.int32)):
            words = rf"^{method}: expected a shape such as .*; .* tensor\.reinterpret\("
            with pytest.raises(ArgumentTypeError, match=words):
                getattr(x, method)(dtype)
    with pytest.raises(ArgumentTypeError, match="expected an extent or a sequence of extents"):
        x.view(4, strange)
    with pytest.raises(ArgumentTypeError, match="transpose: expected a shape"):
        x.transpose(None, 1)
    with pytest.raises(ArgumentTypeError, match="axes: expected"):
        x.transpose(strange)


def test_reshape_shares_the_memory(x: Tensor) -> None:
    flat = x.reshape(-1)
    assert flat.storage is x.storage
    assert type(flat) is Tensor
    api.fill(flat, 3).sync()
    np.testing.assert_array_equal(x.to_numpy().sync(), np.full((4, 8), 3))
    assert type(x[0].reshape((2, 4))) is api.TensorView


@pytest.mark.parametrize("method", ["reshape", "view"])
def test_a_wrong_shape_names_both(x: Tensor, method: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"{method}: shape (5, 5) with 25 elements does not fit")):
        getattr(x, method)((5, 5))
    with pytest.raises(ArgumentError, match=re.escape("shape (8, 4) and strides (1, 8) do not follow one another")):
        getattr(x.T, method)(-1)


def test_a_repr_reads_nothing(x: Tensor) -> None:
    assert repr(x) == "Tensor(f32, shape=(4, 8), device=cpu)"
    assert repr(x.T) == "TensorView(f32, shape=(8, 4), strides=(1, 8), device=cpu)"
    part = x.partition((2, 2))
    assert repr(part) == "Partition(f32, tensor_shape=(4, 8), partition_shape=(2, 2), device=cpu)"
    assert re.fullmatch(r"Tensor\(f32, .*, held by the partition made at .*test_tensor\.py:\d+\)", repr(x))
    part.unpartition()
    assert repr(x.mut) == "Tensor(f32, shape=(4, 8), device=cpu).mut"
    assert repr(x.mut.partition((2, 2))).startswith("BorrowedPartition(f32, ")


CONVERSIONS: list[Callable[[Any], Any]] = [
    np.asarray,
    float,
    int,
    lambda t: t.item(),
    lambda t: t.tolist(),
    lambda t: np.asarray([t]),
    bool,
    lambda t: 3 in t,
    lambda t: f"{t:.2f}",
]


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_values_are_never_copied_silently(x: Tensor, convert: Any) -> None:
    with pytest.raises(TypeError, match=re.escape("write tensor.numpy(), or await tensor.to_numpy()")):
        convert(x)


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_values_are_not_ready_in_closures(x: Tensor, convert: Any) -> None:
    with pytest.raises(NotReadyError, match=r"inside a function given to then\(\), map\(\) or inspect\(\)"):
        x.dup().map(convert).sync()


def test_arithmetic_with_arrays_is_refused(x: Tensor) -> None:
    untyped: Any = x
    with pytest.raises(TypeError):
        np.add(np.ones((4, 8)), untyped)
    with pytest.raises(TypeError):
        operator.add(np.ones((4, 8)), untyped)


ARITHMETIC: list[Callable[[Any], object]] = [
    lambda t: t + 1,
    lambda t: 1 + t,
    lambda t: t @ t,
    lambda t: -t,
    lambda t: t < 0.5,
    lambda t: 2**t,
]


@pytest.mark.parametrize("compute", ARITHMETIC)
def test_arithmetic_is_for_kernels(x: Tensor, compute: Any) -> None:
    with pytest.raises(TypeError, match=r"is not computed with on the host: write a kernel \(@cutile\.entry\)"):
        compute(x)


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_python_does_not_copy_memory_of_a_device(x: Tensor, take: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"neither pickles nor copies: write .*, or tensor\.dup"):
        take(x)


def test_names_of_other_libraries(x: Tensor) -> None:
    untyped: Any = x
    for name, words in hints.TENSORS.items():
        with pytest.raises(AttributeError, match=re.escape(f"no attribute {name!r}; write {words}")):
            getattr(untyped, name)
    with pytest.raises(AttributeError, match=r"no attribute 'shpae'$"):
        _ = untyped.shpae
    with pytest.raises(TypeError, match=r"write api\.fill\(tensor\[\.\.\.\]\.mut, value\)"):
        untyped[0] = 1.0
    for name, words in hints.FUNCTIONS.items():
        with pytest.raises(AttributeError, match=re.escape(f"'cutile.api' has no attribute {name!r}; write {words}")):
            getattr(api, name)
    assert dir(api) == sorted(api.__all__)


def test_names_of_the_language_of_other_libraries() -> None:
    for name, words in hints.LANGUAGE.items():
        with pytest.raises(AttributeError, match=re.escape(f"'cutile' has no attribute {name!r}; write {words}")):
            getattr(ct, name)
        assert all(hasattr(ct, each) for each in re.findall(r"\bct\.(\w+)", words))
    for name, words in (
        ("zeros", "; write api.zeros on the host, and in a kernel ct.constant(0, shape, dtype)"),
        ("from_numpy", "; write api.from_numpy"),
        ("where", "; write ct.select(condition, a, b)"),
        ("expp", "no attribute 'expp'; did you mean 'exp'?"),
        ("float32", "no attribute 'float32'; write ct.f32"),
        ("norm", "no attribute 'norm'; write ct.sqrt(ct.reduce_sum(tile * tile, axis))"),
        ("qqqq", "no attribute 'qqqq'"),
    ):
        with pytest.raises(AttributeError, match=re.escape(words) + "$"):
            getattr(ct, name)
    assert dir(ct) == sorted([*ct.__all__, "pow"])  # which a star import leaves to Python


def test_what_those_messages_say_to_write_is_there(x: Tensor) -> None:
    for owner, remedies in (("tensor", hints.TENSORS), ("api", hints.FUNCTIONS)):
        for name, words in remedies.items():
            assert not hasattr({"tensor": x, "api": api}[owner], name)
            for prefix, attribute in re.findall(r"\b(api|tensor)\.(\w+)", words):
                assert hasattr({"tensor": x, "api": api}[prefix], attribute), (name, words)


def test_values_of_a_partition_are_its_tensors(x: Tensor) -> None:
    for part in (x.mut.partition((2, 2)), x.partition((2, 2))):
        untyped: Any = part
        with pytest.raises(AttributeError, match=r"'to_numpy', but its tensor has: partition\.unpartition\(\)\.to_n"):
            untyped.to_numpy()
        with pytest.raises(AttributeError, match=r"no attribute 'to_numy'$"):
            untyped.to_numy()


def test_what_belongs_into_a_kernel_says_so(x: Tensor) -> None:
    with pytest.raises(TypeError, match="inside a kernel"):
        x.load_tile((2, 2), (0, 0))
    with pytest.raises(TypeError, match="inside a kernel"):
        x.partition((2, 2)).load((0, 0))


def test_the_seam_to_launches(x: Tensor) -> None:
    assert isinstance(x, KernelInput)
    assert not isinstance(x, KernelOutput)
    view = x[1:3, 2:6].__kernel_input__()
    assert (view.shape, view.strides, view.offset, view.dtype) == ((2, 4), (8, 1), 40, f32)
    assert view.byte_range == (40, 40 + 4 * (8 + 3) + 4)
    part = x.partition((2, 3))
    assert isinstance(part, KernelOutput)
    assert part.__kernel_output__().tile == (2, 3)
    assert part.__kernel_output__().view.storage is x.storage


def test_a_partition_tells_its_grid(host: Device) -> None:
    x = api.zeros((1000, 777)).sync()
    part = x.mut.partition((128, 256))
    assert part.grid() == (8, 4, 1)
    assert (part.shape, part.partition_shape, part.tensor_shape) == ((128, 256), (128, 256), (1000, 777))
    assert (part.dtype, part.strides, part.num_bytes, part.storage) == (f32, (777, 1), 777_000 * 4, x.storage)
    assert x.reshape(-1).mut.partition(1000).grid() == (777, 1, 1)
    assert x.reshape((10, 100, 777)).mut.partition((1, 10, 100)).grid() == (10, 10, 8)
    with pytest.raises(
        ArgumentError, match=r"must have 2 extents, one for each axis of the tensor of shape \(1000, 777\), got \(4,\)"
    ):
        x.mut.partition(4)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1,) * 9, "has 9 axes; a partition has at most 8"),
        ((), "must have 2 extents, one for each axis of the tensor of shape (4, 8), got ()"),
        ((2, 0), "partition shape: axis 1 of (2, 0) is empty"),
        ((-1, 2), "is negative"),
        (2.5, "partition shape: expected an extent or a sequence of extents"),
    ],
)
def test_a_bad_partition_shape_is_refused_and_holds_nothing(x: Tensor, shape: Any, words: str) -> None:
    for tensor in (x, x.mut):
        with pytest.raises(ArgumentError, match=re.escape(words)):
            tensor.partition(shape)
    assert x.to_host_vec().sync()[5] == 5


@pytest.mark.parametrize("shape", [(4.0,), [4.0], (np.float32(4),)], ids=str)
def test_what_equals_the_last_tile_is_no_tile_for_that(shape: Any) -> None:
    """Whether a shape is one does not depend on what came before it."""
    y = api.zeros((12,)).sync()
    y.mut.partition((4,))
    with pytest.raises(ArgumentTypeError, match="partition shape: expected an extent"):
        y.mut.partition(shape)
    assert y.mut.partition((np.int64(4),)).grid() == (3, 1, 1)


def test_iteration_goes_over_the_first_axis() -> None:
    assert [row.shape for row in api.zeros((2, 3)).sync()] == [(3,), (3,)]
    with pytest.raises(ArgumentTypeError, match="has no axes, and so no length"):
        iter(api.zeros(()).sync())
