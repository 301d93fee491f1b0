"""One launch argument against its parameter: a tensor's view, a partition's, or a plain number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from cuda_async import DeviceOp, OwnershipError
from cutile.compile.facts import MOST_EXTENT
from cutile.errors import ArgumentError, ArgumentTypeError, LaunchError
from cutile.frontend.parameters import Parameter
from cutile.launch.foreign import foreign_argument
from cutile.launch.pointers import Pointer, check_pointer
from cutile.launch.scalars import Number, plain_scalar, raw_scalar
from cutile.launch.views import KernelInput, KernelOutput, TiledView, View

Checked = View | TiledView | Pointer | Number | None
"""What an argument turned out to be; None for one that is not known yet."""

MAX_PARTITION_RANK = 3
_VIEWS = (View, TiledView)  # a union is slower to ask for


_op_types: dict[type, bool] = {}


def is_op(argument: Any) -> bool:
    """Whether an argument is an op that has yet to run. Remembers the answer by type: `isinstance` asks an ABC."""
    kind = cast("type[Any]", type(argument))
    known = _op_types.get(kind)
    if known is None:
        known = _op_types[kind] = issubclass(kind, DeviceOp)
    return known


def check_argument(kernel: str, parameter: Parameter, argument: Any) -> Checked:
    """What `argument` is to the launch. Raises as `_looked_at` does, and ArgumentError for an axis that is too long."""
    found = _looked_at(kernel, parameter, argument)
    if isinstance(found, _VIEWS) and max(found.shape, default=1) > MOST_EXTENT:
        raise ArgumentError(
            f"{kernel}: argument {parameter.title!r} has the shape {found.shape}; a launch takes at most {MOST_EXTENT} "
            "elements along an axis: give it another shape, with more axes"
        )
    return found


def _looked_at(kernel: str, parameter: Parameter, argument: Any) -> Checked:
    """What `argument` is to the launch.

    Raises:
        ArgumentTypeError: it is not what the parameter takes; says what it takes, what came, and the remedy.
        OwnershipError: it no longer holds its elements.
    """
    if parameter.kind == "tensor":
        look = getattr(argument, "__kernel_input__", None)
        if look is not None:
            try:
                return look()
            except OwnershipError as error:
                raise _no_longer(kernel, parameter, error) from None
        look = getattr(argument, "__kernel_inputs__", None)
        if look is not None:
            try:
                return look()
            except OwnershipError as error:
                raise _no_longer(kernel, parameter, error) from None
        view = foreign_argument(argument, f"{kernel}: argument {parameter.title!r}")
        if view is not None:
            return view
        raise _no_tensor(kernel, parameter, argument)
    if parameter.kind == "mut":
        look = getattr(argument, "__kernel_output__", None)
        if look is None:
            raise _no_partition(kernel, parameter, argument)
        try:
            tiled: TiledView = look()
        except OwnershipError as error:
            raise _no_longer(kernel, parameter, error) from None
        if len(tiled.tile) > MAX_PARTITION_RANK:
            raise LaunchError(
                f"{kernel}: argument {parameter.title!r} is a partition with {len(tiled.tile)} axes; a partition has "
                f"1 to {MAX_PARTITION_RANK}: reshape the tensor"
            )
        if (tiled.map is not None) is not parameter.mapped:
            raise _wrongly_mapped(kernel, parameter, tiled.tile)
        return tiled
    if parameter.kind == "pointer":
        return check_pointer(kernel, parameter, argument)
    if isinstance(parameter.dtype, str):  # a generic: which dtype it is, the other arguments tell
        return raw_scalar(argument, kernel, parameter.title)
    assert parameter.dtype is not None
    return plain_scalar(argument, parameter.dtype, kernel, parameter.title)


def words_of_argument(checked: Checked) -> str:
    """An argument as text, without addresses: what counts for how long a launch takes."""
    if isinstance(checked, _VIEWS):
        return f"{checked.facts.shape} {checked.facts.layout}"
    if checked is None:
        return "not known yet"
    return "a pointer" if isinstance(checked, Pointer) else repr(checked)


def _wrongly_mapped(kernel: str, parameter: Parameter, tile: tuple[int, ...]) -> ArgumentTypeError:
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


def _no_longer(kernel: str, parameter: Parameter, error: OwnershipError) -> OwnershipError:
    return OwnershipError(f"{kernel}: argument {parameter.title!r}: {error}")


def give_back(arguments: Iterable[Any]) -> None:
    """Let go of what stood for a tensor only until the launch: it will not run."""
    for argument in arguments:
        release = getattr(argument, "__kernel_give_back__", None)
        if release is not None:
            release()


def _no_tensor(kernel: str, parameter: Parameter, argument: Any) -> ArgumentTypeError:
    remedy = _taken_out(argument, "out.y.unpartition()") or "make one with api.from_numpy(array)"
    if isinstance(argument, KernelOutput):
        remedy = "unpartition it first"
    return ArgumentTypeError(
        f"{kernel}: argument {parameter.title!r} must be a tensor, got {_describe(argument)}; {remedy}"
    )


def _no_partition(kernel: str, parameter: Parameter, argument: Any) -> ArgumentTypeError:
    name = parameter.title
    what = "a tensor" if isinstance(argument, KernelInput) else _describe(argument)
    foreign = hasattr(argument, "__dlpack__") or hasattr(argument, "__cuda_array_interface__")
    if foreign and not isinstance(argument, KernelInput):
        return ArgumentTypeError(
            f"{kernel}: argument {name!r} must be a partition, since the kernel writes it; got {what}; "
            f"partition it first: api.partition({name}, {_some_tile(argument)}), which shares its memory"
        )
    if type(argument).__module__.startswith("cutile.torch."):
        return ArgumentTypeError(
            f"{kernel}: argument {name!r} is a partition for cutile.torch.launch: use that, or give "
            f"api.partition({name}, tile)"
        )
    remedy = _taken_out(argument, "out.y") or f"partition it first: {name}.partition({_some_tile(argument)})"
    return ArgumentTypeError(
        f"{kernel}: argument {name!r} must be a partition, since the kernel writes it; got {what}; {remedy}"
    )


def _some_tile(argument: Any) -> tuple[int, ...]:
    """A tile for an example, of as many axes as the argument has."""
    rank = min(max(len(getattr(argument, "shape", (64, 64))), 1), MAX_PARTITION_RANK)
    return (1, 64, 64)[-rank:]


def _taken_out(argument: Any, example: str) -> str | None:
    """The remedy where what a launch has yielded is given as a whole."""
    return f"a launch yields all its arguments: take one, such as {example}" if _fields(argument) else None


def _fields(argument: Any) -> tuple[str, ...]:
    """The names of a named tuple's items; none of what is no named tuple."""
    return getattr(cast("Any", argument), "_fields", ()) if isinstance(argument, tuple) else ()


def _describe(argument: Any) -> str:
    if _fields(argument):
        return f"a tuple of {', '.join(_fields(argument))}"
    kind = cast("type[object]", type(argument))
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
