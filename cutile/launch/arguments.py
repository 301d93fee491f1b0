"""Checks of launch arguments: tensors, partitions, pointers, plain numbers.

An argument is an object of this library, of another library, or of Python. A check returns its view, address or number
(`Checked`), or raises an error with the remedy. Readers, which `cutile.host` registers, read other libraries' tensors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from cuda_async import DeviceOp, OwnershipError, default_device
from cutile.compile.facts import MAX_EXTENT, PointerFacts
from cutile.conversion import fits, short
from cutile.dtypes import DTypeLike, DTypeMeta, f4e2m1fnx2
from cutile.errors import ArgumentError, ArgumentTypeError, LaunchError, as_text
from cutile.frontend.parameters import Parameter
from cutile.frontend.signature import Signature
from cutile.launch.views import KernelInput, KernelOutput, OpenTiledView, SharedView, TiledView, View

Number = bool | int | float

EVERY_FLOAT = float(np.finfo(np.float16).max)
"""The largest finite f16. Every float dtype that kernels compute with holds numbers up to it."""

MAX_ADDRESS = 2**64 - 1  # addresses are passed as 64-bit words


class Pointer(int):
    """An address.

    A launch neither keeps its memory alive nor waits for the memory's other users.

    Attributes:
        facts: the dtype of the elements there, for specialization; None where the signature declares one.
    """

    facts: PointerFacts | None


Checked = View | TiledView | OpenTiledView | Pointer | Number | None
"""A checked argument. None stands for an op that has yet to run."""

MAX_PARTITION_RANK = 8
"""Axes of a partition. One with more is refused, and the error says to reshape the tensor.

The limit is a choice. A grid has three axes in any case; the last one counts the tiles of all further axes."""

_VIEWS = (View, TiledView, OpenTiledView)  # a tuple: `isinstance` with a union is slower


_op_types: dict[type, bool] = {}


def is_op(argument: Any) -> bool:
    """Whether an argument is an op that has yet to run.

    The answer is remembered by type: `isinstance` with an abstract class is slow.
    """
    kind = cast("type[Any]", type(argument))
    answer = _op_types.get(kind)
    if answer is None:
        answer = _op_types[kind] = issubclass(kind, DeviceOp)
    return answer


def check_argument(kernel: str, parameter: Parameter, argument: Any) -> Checked:
    """Check one argument, and return its view, pointer or number.

    Raises:
        ArgumentTypeError: the parameter takes no such argument; names the expected kind, the argument and a remedy.
        ArgumentError: an axis is too long, or a number does not fit.
        LaunchError: a partition has too many axes.
        OwnershipError: the tensor no longer holds its elements.
    """
    checked = _CHECKS[parameter.kind](kernel, parameter, argument)
    if isinstance(checked, _VIEWS) and max(checked.shape, default=1) > MAX_EXTENT:
        raise ArgumentError(
            f"{kernel}: argument {parameter.title!r} has the shape {checked.shape}; a launch takes at most "
            f"{MAX_EXTENT} elements along an axis: give it another shape, with more axes"
        )
    return checked


def _check_tensor(kernel: str, parameter: Parameter, argument: Any) -> View:
    view_of = getattr(argument, "__kernel_input__", None) or getattr(argument, "__kernel_inputs__", None)
    if view_of is not None:
        try:
            return view_of()
        except OwnershipError as error:
            raise _ownership_error(kernel, parameter, error) from None
    view = foreign_argument(argument, f"{kernel}: argument {parameter.title!r}")
    if view is None:
        raise _tensor_error(kernel, parameter, argument)
    return view


def _check_partition(kernel: str, parameter: Parameter, argument: Any) -> TiledView | OpenTiledView:
    view_of = getattr(argument, "__kernel_output__", None)
    if view_of is None:
        raise _partition_error(kernel, parameter, argument)
    try:
        tiled: TiledView | OpenTiledView = view_of()
    except OwnershipError as error:
        raise _ownership_error(kernel, parameter, error) from None
    if len(tiled.tile) > MAX_PARTITION_RANK:
        raise LaunchError(
            f"{kernel}: argument {parameter.title!r} is a partition with {len(tiled.tile)} axes; a partition has "
            f"1 to {MAX_PARTITION_RANK}: reshape the tensor"
        )
    if (tiled.map is not None) is not parameter.mapped:
        raise _mapping_error(kernel, parameter, tiled.tile)
    return tiled


def _check_shared(kernel: str, parameter: Parameter, argument: Any) -> SharedView:
    view_of = getattr(argument, "__kernel_shared__", None)
    if view_of is None:
        raise _shared_error(kernel, parameter, argument)
    try:
        return view_of()
    except OwnershipError as error:
        raise _ownership_error(kernel, parameter, error) from None


def _check_scalar(kernel: str, parameter: Parameter, argument: Any) -> Number:
    if isinstance(parameter.dtype, str):  # a generic; `Launchable.plan` infers its dtype from the other arguments
        return raw_scalar(argument, kernel, parameter.title)
    assert parameter.dtype is not None
    return plain_scalar(argument, parameter.dtype, kernel, parameter.title)


def check_position(signature: Signature, position: int, argument: Any) -> Checked:
    """Check one argument; the error may list the parameters in order.

    It does where arguments may have been exchanged: a number came in place of a tensor, or an array in place of a
    number. Raises as `check_argument`.
    """
    parameter = signature.parameters[position]
    try:
        return check_argument(signature.name, parameter, argument)
    except ArgumentTypeError as error:
        kinds = {each.kind for each in signature.parameters}
        is_number = isinstance(argument, bool | int | float) and "scalar" in kinds
        is_array = getattr(argument, "size", 1) != 1 and len(kinds) > 1
        if not (is_array if parameter.kind == "scalar" else is_number):
            raise
        names = ", ".join(signature.names)
        raise ArgumentTypeError(f"{error}; the parameters in their order are ({names})") from None


def words_of_argument(checked: Checked) -> str:
    """An argument as text, as far as a launch's time may depend on it: no addresses."""
    if isinstance(checked, OpenTiledView):
        return f"{checked.shape} {checked.view.layout} in tiles of {checked.tile}"
    if isinstance(checked, _VIEWS):
        return f"{checked.facts.shape} {checked.facts.layout}"
    if checked is None:
        return "not known yet"
    return "a pointer" if isinstance(checked, Pointer) else repr(checked)


def _mapping_error(kernel: str, parameter: Parameter, tile: tuple[int | str, ...]) -> ArgumentTypeError:
    name = parameter.title
    if parameter.mapped:
        return ArgumentTypeError(
            f"{kernel}: argument {name!r} must be a mapped partition, since it is a MappedPartitionMut; map it: "
            f"{name}.partition({tile}).map({(1,) * len(tile)}, num_tile_blocks)"
        )
    return ArgumentTypeError(
        f"{kernel}: argument {name!r} is a mapped partition, and the kernel takes a plain one; pass the partition "
        "without .map(...), or annotate the parameter with MappedPartitionMut"
    )


def _ownership_error(kernel: str, parameter: Parameter, error: OwnershipError) -> OwnershipError:
    return OwnershipError(f"{kernel}: argument {parameter.title!r}: {error}")


def give_back(arguments: Iterable[Any]) -> None:
    """Release the arguments that stand in a tensor's place.

    For a launch that failed, or that will not run.
    """
    for argument in arguments:
        release = getattr(argument, "__kernel_give_back__", None)
        if release is not None:
            release()


def _tensor_error(kernel: str, parameter: Parameter, argument: Any) -> ArgumentTypeError:
    remedy = _item_remedy(argument, "out.y.unpartition()") or "make one with api.from_numpy(array)"
    if isinstance(argument, KernelOutput):
        remedy = "unpartition it first"
    return ArgumentTypeError(
        f"{kernel}: argument {parameter.title!r} must be a tensor, got {_describe(argument)}; {remedy}"
    )


def _partition_error(kernel: str, parameter: Parameter, argument: Any) -> ArgumentTypeError:
    name = parameter.title
    on_host = isinstance(argument, _ARRAY)
    what = "a tensor" if isinstance(argument, KernelInput) else _describe(argument)
    foreign = hasattr(argument, "__dlpack__") or hasattr(argument, "__cuda_array_interface__")
    if on_host and default_device().kind != "host":
        return ArgumentTypeError(
            f"{kernel}: argument {name!r} must be a partition, since the kernel writes it; got an array of the host, "
            f"which a kernel on {default_device()} cannot write; write a tensor there, "
            f"api.from_numpy({name}).sync().partition({_example_tile(argument)}), and read it with out.{name}.numpy()"
        )
    if _is_borrow(argument):
        return ArgumentTypeError(
            f"{kernel}: argument {name!r} must be a partition, since the kernel writes it; got tensor.mut; cut it into "
            f"tiles: tensor.mut.partition({_example_tile(argument)}), or tensor.partition({_example_tile(argument)})"
        )
    if foreign and not isinstance(argument, KernelInput):
        return ArgumentTypeError(
            f"{kernel}: argument {name!r} must be a partition, since the kernel writes it; got {what}; "
            f"partition it first: api.partition({name}, {_example_tile(argument)}), which shares its memory"
        )
    if type(argument).__module__.startswith("cutile.torch."):
        return ArgumentTypeError(
            f"{kernel}: argument {name!r} is a partition for cutile.torch.launch: use that, or give "
            f"api.partition({name}, tile)"
        )
    remedy = _item_remedy(argument, "out.y") or f"partition it first: {name}.partition({_example_tile(argument)})"
    if isinstance(argument, bool | int | float | complex | str | None):
        remedy = "pass a tensor's partition, such as tensor.partition((64,)); are the arguments in the kernel's order?"
    return ArgumentTypeError(
        f"{kernel}: argument {name!r} must be a partition, since the kernel writes it; got {what}; {remedy}"
    )


def _shared_error(kernel: str, parameter: Parameter, argument: Any) -> ArgumentTypeError:
    name = parameter.title
    if isinstance(argument, KernelOutput):
        remedy = "any tile block writes anywhere in it, so that it is not cut into tiles: pass the tensor itself"
    elif hasattr(argument, "__dlpack__") or hasattr(argument, "__cuda_array_interface__"):
        remedy = f"write a tensor: {name} = api.from_numpy(array).sync(), and read it with {name}.numpy()"
        if not isinstance(argument, np.ndarray):
            remedy = f"share its memory with {name} = api.from_dlpack(tensor.detach()), and pass that"
    else:
        remedy = _item_remedy(argument, f"out.{name}") or "make one with api.zeros(shape, dtype)"
    return ArgumentTypeError(
        f"{kernel}: argument {name!r} must be a tensor, which the kernel writes as a SharedMut; got "
        f"{_describe(argument)}; {remedy}"
    )


_ARRAY: type = np.ndarray  # a plain `type`: pyright narrows `np.ndarray` itself to arrays of unknown dtypes


def _example_tile(argument: Any) -> tuple[int, ...]:
    """The tile of a remedy's example, of the argument's rank."""
    whole = argument.__kernel_destination__() if _is_borrow(argument) else argument
    rank = min(max(len(getattr(whole, "shape", (64, 64))), 1), MAX_PARTITION_RANK)
    return (*(1,) * (rank - 2), 64, 64)[-rank:]


def _is_borrow(argument: Any) -> bool:
    """Whether an argument is `tensor.mut`, which was not cut."""
    return hasattr(argument, "__kernel_destination__") and not hasattr(argument, "shape")


def _item_remedy(argument: Any, example: str) -> str | None:
    """The remedy where a launch's whole result is passed in place of one item."""
    return f"a launch yields all its arguments: take one, such as {example}" if _fields(argument) else None


def _fields(argument: Any) -> tuple[str, ...]:
    """The field names of a named tuple; empty for anything else."""
    return getattr(cast("Any", argument), "_fields", ()) if isinstance(argument, tuple) else ()


def _describe(argument: Any) -> str:
    if _fields(argument):
        return f"a tuple of {', '.join(_fields(argument))}"
    return type_name(argument)


def type_name(argument: object) -> str:
    """The name of an argument's type, with its module unless it is built in."""
    kind = type(argument)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# -- tensors of other libraries --------------------------------------------------------------

Reader = Callable[[Any, str], View | None]
"""`reader(argument, function)`: the argument's view; None if it is of another kind. Errors name `function`."""

_readers: list[Reader] = []
_carriers: list[Callable[[Any], DeviceOp[Any]]] = []  # one at most, of `cutile.host`, which imports this package


def register_reader(reader: Reader) -> None:
    """Add a reader of other libraries' tensors.

    Readers are tried in the order of their registration.
    """
    _readers.append(reader)


def register_carrier(carry: Callable[[Any], DeviceOp[Any]]) -> None:
    """Register `carry(array)`: it makes the op that brings a NumPy array to a device.

    The device is the one on which the op runs.
    """
    _carriers[:] = [carry]


def carried(arguments: tuple[Any, ...], checked: list[Checked]) -> tuple[Any, ...]:
    """The arguments, with ops in place of host arrays that may have to be copied.

    Arrays stay if all tensors are on the CPU. If the device is not known yet, the op decides when it runs.

    Args:
        arguments: a launch's arguments.
        checked: the checked arguments; set to None for arrays that an op replaces.
    """
    arrays = [position for position, argument in enumerate(arguments) if isinstance(argument, np.ndarray)]
    others = [view for position, view in enumerate(checked) if isinstance(view, _VIEWS) and position not in arrays]
    if not arrays or (others and not any(map(is_op, arguments)) and all(_on_host(view) for view in others)):
        return arguments
    with_ops = list(arguments)
    for position in arrays:
        with_ops[position], checked[position] = _carriers[0](arguments[position]), None
    return tuple(with_ops)


def _on_host(view: View | TiledView | OpenTiledView) -> bool:
    return view.storage.device.kind == "host"


def foreign_argument(argument: Any, function: str) -> View | None:
    """The elements of another library's tensor; None for anything else."""
    for reader in _readers:
        view = reader(argument, function)
        if view is not None:
            return view
    return None


# -- pointers --------------------------------------------------------------------------------


def check_pointer(kernel: str, parameter: Parameter, argument: Any) -> Pointer:
    """Check a pointer argument: a result of `tensor.device_pointer()`, or an address.

    Raises:
        ArgumentTypeError: it is neither; it points to another dtype than the signature declares; or neither of the
            two tells the dtype.
        ArgumentError: it is negative, or has more than 64 bits.
    """
    dtype = getattr(argument, "dtype", None)
    try:
        address = operator.index(argument)
    except TypeError:
        remedy = "; pass its pointer: x.device_pointer()" if hasattr(argument, "device_pointer") else ""
        raise ArgumentTypeError(
            f"{kernel}: argument {parameter.title!r} must be a pointer, got {type(argument).__qualname__}{remedy}"
        ) from None
    if isinstance(argument, bool) or not 0 <= address <= MAX_ADDRESS:
        raise ArgumentError(f"{kernel}: argument {parameter.title!r} must be an address, got {as_text(argument)}")
    if not isinstance(dtype, DTypeMeta):  # a plain number
        dtype = None
    declared = parameter.dtype
    if isinstance(declared, DTypeMeta) and dtype is not None and dtype is not declared:
        raise ArgumentTypeError(
            f"{kernel}: argument {parameter.title!r} must be a pointer to {declared}, got one to {dtype}; "
            "pass int(pointer) to have its bits read as such"
        )
    if declared is None and dtype is None:
        raise ArgumentTypeError(
            f"{kernel}: argument {parameter.title!r} does not know what it leads to; pass tensor.device_pointer(), or "
            f"declare it: {parameter.title}: Ptr[f32]"
        )
    pointer = Pointer(address)
    pointer.facts = PointerFacts(dtype) if dtype is not None and not isinstance(declared, DTypeMeta) else None  # type: ignore[arg-type]
    return pointer


# -- numbers ---------------------------------------------------------------------------------


def raw_scalar(value: Any, kernel: str, name: str, expected: str = "a number") -> Number:
    """`value` as a Python bool, int or float.

    Args:
        value: a number of Python, NumPy or ml_dtypes.
        kernel, name: the kernel and the parameter, for the error.
        expected: the expected kind of number, for the error.

    Raises:
        ArgumentTypeError: it is no number.
    """
    if isinstance(value, np.generic):
        value = _of_numpy(value)
    if not isinstance(value, bool | int | float):
        raise ArgumentTypeError(
            f"{kernel}: argument {name!r} must be {expected}, got {type(value).__name__}: {as_text(value)}"
            f"{_remedy(value)}"
        )
    return value


def _of_numpy(scalar: Any) -> Any:
    """A scalar of NumPy or ml_dtypes as a Python number.

    Others, such as complex numbers and texts, are returned as they are.
    """
    if scalar.dtype.kind in "biuf":
        return scalar.item()
    # Most scalars of ml_dtypes are of the kind V. So is np.void, which is a record.
    return float(scalar) if scalar.dtype.kind == "V" and type(scalar) is not np.void else scalar


def _remedy(value: object) -> str:
    """The remedy for an array of one element in place of a scalar."""
    if hasattr(value, "__kernel_input__"):
        return "; what is on the device is loaded in the kernel: annotate the parameter with Tensor"
    has_item = hasattr(value, "item") and not isinstance(value, np.generic) and getattr(value, "size", 1) == 1
    return "; an array of one element has .item()" if has_item else ""


def plain_scalar(value: Any, dtype: DTypeLike, kernel: str, name: str) -> Number:
    """`value` as a plain number that `dtype` holds.

    Raises:
        ArgumentTypeError: it is no number; a bool for a number, or another number than 0 and 1 for a bool; or a
            fraction for an integer.
        ArgumentError: it does not fit.
    """
    kind = dtype.kind
    if dtype is f4e2m1fnx2:
        raise ArgumentTypeError(
            f"{kernel}: argument {name!r}: f4e2m1fnx2 holds pairs, and one number is none; declare a u8, and write "
            f"ct.bitcast({name}, ct.f4e2m1fnx2)"
        )
    if type(value) is float and kind in ("float", "storage"):  # the common case
        return value if -EVERY_FLOAT <= value <= EVERY_FLOAT else _in_range(value, dtype, kernel, name)
    value = raw_scalar(value, kernel, name, f"a scalar of {dtype.name}")
    if isinstance(value, bool):
        if kind != "bool":
            raise ArgumentTypeError(f"{kernel}: argument {name!r} must be a scalar of {dtype}, got {as_text(value)}")
        return value
    if kind == "bool":
        if value in (0, 1):
            return bool(value)
        raise ArgumentTypeError(f"{kernel}: argument {name!r} must be a bool (or 0 or 1), got {short(value)}")
    if kind in ("float", "storage"):
        return _in_range(value, dtype, kernel, name)
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            raise ArgumentTypeError(f"{kernel}: argument {name!r} must be an integer ({dtype}), got {as_text(value)}")
        value = int(value)
    info = np.iinfo(dtype.numpy)
    if not info.min <= value <= info.max:
        raise ArgumentError(
            f"{kernel}: argument {name!r} must fit {dtype} ({info.min} to {info.max}), got {as_text(value)}"
        )
    return value


def _in_range(value: float, dtype: DTypeLike, kernel: str, name: str) -> float:
    """`value` as a float, unless it is finite and the dtype makes an infinity of it.

    Raises ArgumentError.
    """
    if not fits(value, dtype):
        infinity = "inf" if value > 0 else "-inf"
        raise ArgumentError(
            f"{kernel}: argument {name!r} must fit {dtype}, got {short(value)}, which would become {infinity}: pass "
            f"float('{infinity}') if that is meant, or declare the scalar as f64"
        )
    return float(value)


_CHECKS: dict[str, Callable[[str, Parameter, Any], Checked]] = {
    "tensor": _check_tensor,
    "mut": _check_partition,
    "shared": _check_shared,
    "pointer": check_pointer,
    "scalar": _check_scalar,
}


def without_elements(shape: tuple[int, ...]) -> str:
    """The end of the error for an empty `Mut` argument in `cutile.torch`."""
    return (
        f"has no elements (shape {shape}), and other tensors that the kernel writes have: their tile blocks would have "
        "no tile of it; leave it out, or pass one of their shape"
    )
