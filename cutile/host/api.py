"""Tensors: made on the device, copied to it, copied from it, copied on it.

`from cutile import api`.

Most functions return an operation. It makes the tensor when it runs (`.sync()`, `.sync_on(stream)`, `await`), on the
device on which it runs. Arguments are checked at once. A tensor's methods `reshape`, `partition`, `dup`, `to_numpy` and
the like are also methods of an operation that yields a tensor:

    y = api.zeros((1024, 1024), f16).partition((128, 128))      # an op that yields a partition
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, cast

import numpy as np

from cuda_async import DeviceOp
from cuda_async.hints import remedy_for
from cutile.conversion import convert as convert_array
from cutile.conversion import round_to
from cutile.dtypes import DTYPES, DTypeLike, as_dtype, bf16, f4e2m1fnx2, f16, f32, f64, u8
from cutile.errors import ArgumentError, ArgumentTypeError, as_text, own_keywords
from cutile.host.creation import Arange, Empty, Full, as_element, convert, eye, eye_rect, fill_elements, linspace, meta
from cutile.host.device_vec import DeviceVec, device_vec
from cutile.host.exchange import from_dlpack, from_foreign, partition
from cutile.host.foreign import refuse_without_values
from cutile.host.hints import ARGUMENTS, FUNCTIONS
from cutile.host.memory import Array, DevicePointer
from cutile.host.partition import BorrowedPartition, MutBorrow, Partition
from cutile.host.random import rand, randn, randn_f16
from cutile.host.shapes import DTypeSpec, ShapeLike, as_shape, element_type, new_shape, number_type
from cutile.host.shared import SharedTensor
from cutile.host.tensor import Tensor, TensorView
from cutile.host.transfer import FromHost, copy_into
from cutile.launch.views import View

__all__ = (
    "BorrowedPartition",
    "DevicePointer",
    "DeviceVec",
    "MutBorrow",
    "Partition",
    "SharedTensor",
    "Tensor",
    "TensorView",
    "Writable",
    "arange",
    "convert",
    "copy_device_to_host_vec",
    "copy_host_to_device",
    "copy_host_vec_to_device",
    "cumsum",
    "device_vec",
    "dup",
    "empty",
    "eye",
    "eye_rect",
    "fill",
    "from_dlpack",
    "from_foreign",
    "from_numpy",
    "full",
    "linspace",
    "memcpy",
    "meta",
    "ones",
    "partition",
    "rand",
    "randn",
    "randn_f16",
    "scan",
    "zeros",
)


def __dir__() -> list[str]:
    return list(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        # A known name of another library comes before a similar name of ours.
        remedy = f"; write {FUNCTIONS[name]}" if name in FUNCTIONS else remedy_for(name, __all__)
        words = f"module 'cutile.api' has no attribute {name!r}{remedy}"
        raise AttributeError(words, name=name, obj=sys.modules[__name__])


class Writable(Protocol):
    """A destination of `memcpy` and `fill`: a tensor, or `view.mut`."""

    def __kernel_destination__(self) -> View:
        """The elements. Raises OwnershipError where they must not be written."""
        ...


W = TypeVar("W", bound=Writable)


# -- creation ---------------------------------------------------------------------------------


@own_keywords(ARGUMENTS, "a shape is one argument, such as (4, 8)")
def empty(shape: ShapeLike, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields a new tensor with undefined contents.

    Args:
        shape: the extents, each at least 0; a tensor with an extent of 0 has no elements.
        dtype: the element type: `f32`, `"f32"` or a NumPy dtype.

    Raises:
        ArgumentTypeError: `shape` is no shape, or `dtype` no element type.
        ArgumentError: an extent is negative or too large.

    Example:
        >>> from cutile import api, bf16
        >>> api.empty((2, 3), bf16).sync().num_bytes
        12
    """
    return Empty(new_shape(shape, "empty"), element_type(dtype, "empty"))


@own_keywords(ARGUMENTS, "a shape is one argument, such as (4, 8)")
def zeros(shape: ShapeLike, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields a new tensor of zeros. Arguments and errors as for `empty`.

    Example:
        >>> from cutile import api, f16
        >>> api.zeros((2, 3), f16).sync()
        Tensor(f16, shape=(2, 3), device=cpu)
    """
    return _filled("zeros", 0, shape, dtype)


@own_keywords(ARGUMENTS, "a shape is one argument, such as (4, 8)")
def ones(shape: ShapeLike, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields a new tensor of ones. Arguments and errors as for `empty`.

    Example:
        >>> from cutile import api, i32
        >>> api.ones((3,), i32).to_numpy().sync()
        array([1, 1, 1], dtype=int32)
    """
    return _filled("ones", 1, shape, dtype)


@own_keywords(ARGUMENTS, "a shape is one argument, such as (4, 8)")
def full(value: Any, shape: ShapeLike, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields a new tensor with the same value everywhere.

    Args:
        value: a number that `dtype` can hold; a floating-point `dtype` rounds it.
        shape, dtype: as for `empty`.

    Raises:
        ArgumentTypeError: an argument has the wrong type, or value and shape are exchanged.
        ArgumentError: an extent is negative or too large, or `dtype` cannot hold the value.

    Example:
        >>> from cutile import api, i32
        >>> api.full(7, (3,), i32).to_numpy().sync()
        array([7, 7, 7], dtype=int32)
    """
    if (isinstance(value, list | tuple) or getattr(value, "ndim", 0)) and not hasattr(shape, "__len__"):
        raise ArgumentTypeError(f"full: the value comes first: full({shape!r}, {value!r})")
    return _filled("full", value, shape, dtype)


def _filled(function: str, value: Any, shape: ShapeLike, dtype: DTypeSpec) -> DeviceOp[Tensor]:
    element = element_type(dtype, function)
    return Full(new_shape(shape, function), element, as_element(value, element, function), function)


@own_keywords(ARGUMENTS, ARGUMENTS["start"])
def arange(length: int, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields 0, 1, ..., `length` - 1, as a tensor of one axis.

    Args:
        length: how many numbers.
        dtype: the element type; a floating-point one rounds.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: `length` is negative, or `dtype` cannot hold the last number.

    Example:
        >>> from cutile import api, f32
        >>> api.arange(4, f32).to_numpy().sync()
        array([0., 1., 2., 3.], dtype=float32)
    """
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        raise ArgumentTypeError(
            f"arange: expected a length and an element type, got the numbers {as_text(length)} and {dtype}; "
            f"{ARGUMENTS['start']}"
        )
    number = number_type(dtype, "arange")
    shape = new_shape(length, "arange")
    if len(shape) != 1:
        raise ArgumentError(f"arange: length: expected one number, got {length!r}; reshape what it yields")
    if shape[0]:
        as_element(shape[0] - 1, number, "arange", "the last element")
    return Arange(shape, number)


def fill(tensor: W, value: Any) -> DeviceOp[W]:
    """An op that gives every element of a tensor the same value.

    It yields `tensor`.

    Args:
        tensor: a tensor, or `view.mut` for part of one; lent to the op, and written.
        value: a number that its dtype can hold.

    Raises:
        ArgumentTypeError, ArgumentError: the value is no number, or does not fit.
        ArgumentError: on a GPU, the elements are not contiguous and have more than 3 axes.
        OwnershipError: the tensor is held, read-only, or used by an operation that has not finished.

    Example:
        >>> from cutile.dtypes import f32
        >>> fill(zeros((3,), f32).sync(), 7.0).to_numpy().sync().tolist()
        [7.0, 7.0, 7.0]
    """
    view = _destination(tensor, "fill", "tensor")
    return fill_elements(view, as_element(value, view.dtype, "fill"), tensor)


# -- from the host, and back ------------------------------------------------------------------


def copy_host_to_device(array: Any, dtype: DTypeSpec | None = None) -> DeviceOp[Tensor]:
    """An op that copies an array of the host to a new contiguous tensor of its shape.

    The op holds a NumPy array until the copy is done; the array must not change until then.

    Args:
        array: a NumPy array with any strides (also of ml_dtypes), a list, or a number.
        dtype: the element type of the tensor; the array's own by default. Elements are converted as by `convert`.

    Raises:
        ArgumentTypeError: there is no such element type, or the elements are no real numbers.
        ArgumentError: lists have different lengths, or an integer of more than 64 bits does not fit.

    Example:
        >>> import numpy as np
        >>> from cutile import api
        >>> api.copy_host_to_device(np.eye(2)).sync()
        Tensor(f64, shape=(2, 2), device=cpu)
    """
    return _from_host(array, dtype, "copy_host_to_device")


@own_keywords(ARGUMENTS)
def from_numpy(array: Any, dtype: DTypeSpec | None = None) -> DeviceOp[Tensor]:
    """`copy_host_to_device` under the name that PyTorch has for it.

    Unlike PyTorch's function, it copies on the CPU too. Arguments and errors are those of `copy_host_to_device`.

    Example:
        >>> import numpy as np
        >>> from_numpy(np.eye(2, dtype=np.float32)).to_numpy().sync().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return _from_host(array, dtype, "from_numpy")


def copy_host_vec_to_device(vec: Any, dtype: DTypeSpec | None = None) -> DeviceOp[Tensor]:
    """`copy_host_to_device` for a list or an array of one axis.

    Arguments as for `copy_host_to_device`.

    Raises:
        ArgumentError: it has another number of axes.
        ArgumentTypeError: there is no such element type, or the elements are no real numbers.

    Example:
        >>> from cutile import api
        >>> api.copy_host_vec_to_device([1.0, 2.0], "f32").sync()
        Tensor(f32, shape=(2,), device=cpu)
    """
    refuse_without_values(vec, "copy_host_vec_to_device")
    array = _host_array(vec, "copy_host_vec_to_device")
    if array.ndim != 1:
        raise ArgumentError(
            f"copy_host_vec_to_device: expected one axis, got shape {array.shape}; "
            "copy_host_to_device takes any number of axes"
        )
    return _from_host(vec, dtype, "copy_host_vec_to_device")


def _from_host(source: Any, dtype: DTypeSpec | None, function: str) -> DeviceOp[Tensor]:
    if isinstance(source, Tensor):
        raise ArgumentTypeError(f"{function}: {source!r} is on a device already; dup() copies it")
    refuse_without_values(source, function)
    array = _host_array(source, function)
    try:
        element = as_dtype(array.dtype if dtype is None else dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"{function}: {error}") from None
    # `astype` would drop imaginary parts, read texts, count days, and take records of one field.
    if array.dtype.kind in "cSUmM" or array.dtype.type is np.void:
        raise ArgumentTypeError(f"{function}: expected real numbers, got {array.dtype}")
    if array.dtype != element.numpy or element.kind == "storage":  # also where only the byte order differs
        array = _converted(array, element, function)
    as_shape(array.shape)
    return FromHost(array, element, Tensor)


def _host_array(source: Any, function: str) -> Array:
    """The argument as a NumPy array.

    Raises ArgumentError for lists of different lengths, or the error of the argument's own `__array__`.
    """
    try:
        return np.asarray(source)
    except ValueError as error:
        if type(error) is not ValueError:  # of a tensor or an op, which names the remedy
            raise
        raise ArgumentError(
            f"{function}: the lists have different lengths; pad them to one, or make a tensor of each"
        ) from None


def _of_objects(array: Array, dtype: DTypeLike, function: str) -> Array:
    """An array of Python's numbers, such as integers of more than 64 bits, as `dtype`.

    Raises:
        ArgumentTypeError: an element is no real number. NumPy would make NaN of None, and read texts.
        ArgumentError: an integer does not fit.
    """
    from decimal import Decimal  # imported here: a process that only launches compiled kernels needs no decimals

    for number in array.flat:
        if not isinstance(number, Real | Decimal | np.bool_):
            raise ArgumentTypeError(f"{function}: expected real numbers, got {as_text(number)}")
    try:
        return array.astype(dtype.numpy)
    except OverflowError:
        raise ArgumentError(f"{function}: an element is out of the range of {dtype.name}") from None


_BY_NUMPY = frozenset({*itertools.product((f16, f32, f64), repeat=2), (f16, bf16), (f32, bf16)})
"""Pairs of floats, source and result, that NumPy converts as kernels do: it rounds once, to nearest even."""


def _converted(array: Array, dtype: DTypeLike, function: str) -> Array:
    """The elements as `dtype`, rounded, truncated and saturated as in a kernel.

    NumPy leaves open which integer a NaN becomes, and rounds twice on the way from float64 or int64 to bfloat16.

    Raises:
        ArgumentTypeError: `dtype` is a storage dtype, and the array's dtype has no counterpart here; or it is
            f4e2m1fnx2, and the array's dtype is not uint8.
    """
    try:
        source = as_dtype(array.dtype)
    except TypeError as error:
        if dtype.kind == "storage":
            raise ArgumentTypeError(f"{function}: {error}") from None
        if dtype is bf16 and array.dtype.kind == "f":  # long doubles, which NumPy would round to float32 first
            return round_to(array, dtype)
        if array.dtype.kind == "O":
            return _of_objects(array, dtype, function)
        return array.astype(dtype.numpy)  # long doubles, integers of 4 bits
    if dtype is f4e2m1fnx2:
        if source is u8:
            return array
        raise ArgumentTypeError(
            f"{function}: f4e2m1fnx2 is two numbers to a byte: expected an array of uint8, got {array.dtype}"
        )
    if (source, dtype) in _BY_NUMPY:
        with np.errstate(over="ignore", invalid="ignore"):  # infinities and signalling NaNs, as from `convert`
            return array.astype(dtype.numpy)  # a tenth of the time of `convert`, which goes by way of float64
    return convert_array(array.astype(source.numpy, copy=False), source, dtype)


def copy_device_to_host_vec(tensor: Tensor) -> DeviceOp[Array]:
    """An op that yields the values as a NumPy array of one axis, in row-major order.

    The same as `tensor.to_host_vec()`.

    Raises:
        ArgumentTypeError: `tensor` is no tensor.
        OwnershipError: it is held, or an operation that has not finished writes it.

    Example:
        >>> from cutile import api
        >>> x = api.eye(2).sync()
        >>> api.copy_device_to_host_vec(x).sync()
        array([1., 0., 0., 1.], dtype=float32)
    """
    return _tensor(tensor, "copy_device_to_host_vec", "tensor").to_host_vec()


# -- on the device ----------------------------------------------------------------------------


def dup(tensor: Tensor) -> DeviceOp[Tensor]:
    """An op that yields a contiguous copy of a tensor: `tensor.dup()`.

    Raises:
        ArgumentTypeError: `tensor` is no tensor.
        ArgumentError: on a GPU, it is not contiguous and has more than 3 axes.
        OwnershipError: it is held, or an operation that has not finished writes it.

    Example:
        >>> from cutile import api
        >>> x = api.ones((2,)).sync()
        >>> api.dup(x).sync().storage is x.storage
        False
    """
    return _tensor(tensor, "dup", "tensor").dup()


def memcpy(dst: Writable, src: Tensor) -> DeviceOp[None]:
    """An op that copies the elements of `src` onto those of `dst`, in row-major order.

    Args:
        dst: a tensor, or `view.mut` for part of one; lent to the op, and written.
        src: a tensor or view with as many elements and the same dtype; lent to the op.

    Raises:
        ArgumentTypeError: the dtypes differ, or an argument is no tensor.
        ArgumentError: the numbers of elements differ; the shapes differ, and neither is contiguous; or one is not
            contiguous, and has more than 3 axes on a GPU or is on another device than the other.
        OwnershipError: one of the two is held, `dst` is read-only, they overlap, or an operation that has not
            finished uses one of them.

    Example:
        >>> from cutile import api, f32
        >>> y = api.zeros((2, 4), f32).sync()
        >>> api.memcpy(y[1].mut, api.arange(4, f32).sync()).sync()
        >>> y.to_numpy().sync()
        array([[0., 0., 0., 0.],
               [0., 1., 2., 3.]], dtype=float32)
    """
    return copy_into(_destination(dst, "memcpy", "dst"), _tensor(src, "memcpy", "src").__kernel_input__())


# -- scans ------------------------------------------------------------------------------------


def cumsum(x: Tensor, dtype: DTypeSpec | None = None, *, axis: int = 0) -> DeviceOp[Tensor]:
    """An op that yields the running sums of a tensor of one axis.

    The sum at an element includes that element. Memory is read and written once. Floats are added in the same order in
    each run.

    Args:
        x: numbers, of shape (n,), contiguous or not; lent to the op.
        dtype: the dtype of the sums, to which elements are converted first; by default the dtype of `x`.
        axis: 0 or -1, the only axis.

    Returns:
        A tensor of shape (n,). Sums of f16 and bf16 run in f32, and are rounded once; integers wrap.

    Raises:
        ArgumentTypeError: `x` is no tensor, or `dtype` is bool or a storage dtype.
        ArgumentError: `x` has another number of axes, or `axis` is another one.

    Example:
        >>> from cutile import api, i32
        >>> cumsum(api.full(3, (4,), i32).sync()).to_numpy().sync()
        array([ 3,  6,  9, 12], dtype=int32)
    """
    if axis not in (0, -1):
        raise ArgumentError(
            f"cumsum: axis: expected 0, the axis of a tensor of one axis, got {as_text(axis)}; scan rows in a kernel: "
            "ct.cumsum(tile, 1)"
        )
    return _scan(x, operator.add, 0, dtype, "cumsum")


def scan(
    x: Tensor, function: Callable[[Any, Any], Any], identity: Any, dtype: DTypeSpec | None = None
) -> DeviceOp[Tensor]:
    """An op that yields the running results of a function over a tensor of one axis.

    `y[i] = function(y[i - 1], x[i])`. Memory is read and written once. Elements are combined in the same order in each
    run.

    Args:
        x: of shape (n,); lent to the op.
        function: associative, and need not commute. It takes two scalars, or a scalar and a tile: a `def`, a `lambda`,
            a function of the language or of `operator`. It is compiled once for each function and dtype.
        identity: a constant number that the function leaves without effect, such as 0 for sums.
        dtype: the dtype of the results, to which elements are converted first; by default the dtype of `x`.

    Returns:
        A tensor of shape (n,). f16 and bf16 are combined in f32, and rounded once.

    Raises:
        ArgumentTypeError: `x` is no tensor, `identity` is no number, or kernels do not compute with `dtype`.
        ArgumentError: `x` has another number of axes, `dtype` cannot hold `identity`, or `function` is a well-known one
            with another identity: a sum, a product, a minimum, a maximum, and, or, xor.

    Example:
        >>> import cutile as ct
        >>> x = ct.api.from_numpy(np.array([1, 3, 2], np.int32)).sync()
        >>> scan(x, ct.maxi, -(2**31)).to_numpy().sync()
        array([1, 3, 3], dtype=int32)
    """
    return _scan(x, function, identity, dtype, "scan")


def _scan(
    x: Any, function: Callable[[Any, Any], Any], identity: Any, dtype: DTypeSpec | None, caller: str
) -> DeviceOp[Tensor]:
    from cutile.host.kernels import scan_op  # late: kernels take a moment to import

    tensor = _tensor(x, caller, "x")
    element = tensor.dtype if dtype is None else element_type(dtype, caller)
    if element not in DTYPES or (caller == "cumsum" and element.is_bool):
        raise ArgumentTypeError(
            f"{caller}: dtype: nothing is added in {element}; give the dtype of the results, such as dtype=i32 or f32"
        )
    return scan_op(tensor, function, identity, element, caller)


def _tensor(argument: Any, function: str, name: str) -> Tensor:
    if isinstance(argument, Tensor):
        return argument
    raise ArgumentTypeError(f"{function}: {name}: expected a tensor, got {_kind(argument)}")


def _destination(argument: Any, function: str, name: str) -> View:
    if isinstance(argument, Tensor | MutBorrow):
        return argument.__kernel_destination__()
    raise ArgumentTypeError(f"{function}: {name}: expected a tensor, or view.mut, got {_kind(argument)}")


def _kind(argument: Any) -> str:
    kind = type(argument).__name__
    if isinstance(argument, DeviceOp):
        label = cast("DeviceOp[Any]", argument).label()
        return f"the op {label}, which has not run; run it first (sync(), await), or build this in its then()"
    if isinstance(argument, np.ndarray | list):
        return f"{kind}; api.from_numpy(array).sync() makes one of it"
    return f"{kind}; unpartition() it first" if isinstance(argument, Partition) else kind
