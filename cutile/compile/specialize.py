"""Types of parameters and values of generics, from facts of launch arguments.

Compiled code is specialized to dtypes, ranks, the axis of stride 1, the alignment of bases and strides, the partition's
tile, generics, and extents that the signature declares. Other extents and strides, addresses and scalars are launch
arguments: a change of them does not recompile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cutile.backend.interface import CompileOptions
from cutile.compile.facts import Fact, PointerFacts, TensorFacts, constant
from cutile.dtypes import DTypeLike, as_dtype, u64
from cutile.errors import ArgumentError, ArgumentTypeError, GenericsError, MissingGenericsError
from cutile.frontend.build import NO_POINTERS
from cutile.frontend.parameters import Arranged, Extent, Generic, NamedExtent, Parameter
from cutile.frontend.signature import Signature
from cutile.ir.types import MutType, TensorType, TileType, Type

_OPTIONS = "hints for the compiler are given as k(...).compile_options(ct.CompileOptions({}))"
LAUNCH: dict[str, str] = {
    **{name: _OPTIONS.format(f"{name}=...") for name in CompileOptions.__dataclass_fields__},
    "backend": "ct.use_backend(name) chooses for a `with` block",
    "grid": "the grid of an operation is set with k(...).grid((x, y, z))",
    "num_ctas": _OPTIONS.format("num_cta_in_cga=2"),
    "num_stages": "how far loads run ahead the compiler decides",
    "num_warps": _OPTIONS.format("num_worker_warps=4"),
    "occupancy": _OPTIONS.format("occupancy=2"),
    "options": _OPTIONS.format("..."),
    "stream": "an operation is given a stream when it runs: k(...).sync_on(stream)",
    "target": "what inspect compiles for is called arch, such as arch='sm_90a'",
}
"""What to write in place of another library's keyword of a launch, by that keyword.

The table is here, since a call's keyword that is no parameter is looked up among the generics. `entry`, `autotune` and
`CompileOptions` have tables of their own: the same keyword has another remedy there.
"""


@dataclass(frozen=True)
class Specialization:
    """The types and constants that a kernel is compiled for.

    Attributes:
        parameters: the types of the launch parameters.
        generics: the values of the generics.
        pointers: the dtypes of the elements that pointer parameters point to.
        arrangement: how arguments that are groups are put together from launch parameters.
    """

    parameters: Mapping[str, Type]
    generics: Mapping[str, Any]
    # By a factory: a mapping has no hash, and a dataclass refuses such a default.
    pointers: Mapping[str, DTypeLike] = field(default_factory=lambda: NO_POINTERS)
    arrangement: Mapping[str, Arranged] = field(default_factory=dict[str, Arranged])


def generic_values(signature: Signature, flat: Sequence[Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's generics, checked, by name.

    Args:
        signature: the kernel's signature.
        flat: values of all generics, in declared order; None for none.
        named: values of some generics by name. They replace those of `flat`.

    Raises:
        GenericsError: too many or too few, an unknown name, or a value of the wrong kind.
    """
    names = [generic.name for generic in signature.generics]
    values: dict[str, Any] = {}
    if flat is not None:
        if isinstance(flat, Mapping):
            raise GenericsError(
                f"{signature.name}: .generics takes values by name, .generics(**{flat!r}), or configurations to be "
                f"searched, .generics([{flat!r}, ...]); got one dictionary"
            )
        if not isinstance(flat, Sequence) or isinstance(flat, str):
            raise GenericsError(
                f"{signature.name}: .generics takes a list of values, in the order ({', '.join(names)}); got {flat!r}"
            )
        values.update(zip(names, _by_generic(signature, flat), strict=True))
    for name, value in named.items():
        if name not in names:
            raise _unknown(signature, name)
        values[name] = value
    return {name: _checked(signature, _generic(signature, name), value) for name, value in values.items()}


def _unknown(signature: Signature, name: str) -> GenericsError:
    """The error of a keyword that names no generic.

    Its remedy is the launch's own way of writing the keyword (`LAUNCH`). Else it is the partition, if the kernel writes
    a tensor: the caller most often means an extent of its tile.
    """
    names = [generic.name for generic in signature.generics]
    output = next((each.name for each in signature.parameters if each.kind == "mut"), None)
    generics = f"its generics are {', '.join(names)}" if names else "it has no generics"
    remedy = f"leave it out{', or take one of these' if names else ''}"
    if name in LAUNCH:
        remedy = LAUNCH[name]
    elif output:
        remedy = f"the extents of a tile come from the partition: {output}.partition(...)"
    error = GenericsError(f"{signature.name} has no generic {name!r}; {generics}; {remedy}")
    # `entry.py` reads it, and adds the remedy of a partition whose extents have names.
    error.extent = name if output and name not in LAUNCH else ""
    return error


def _by_generic(signature: Signature, flat: Sequence[Any]) -> list[Any]:
    """One value for each generic, of a flat list.

    If exactly one generic is a shape, its extents may stand in the list one by one. For a shape S and a dtype E,
    `.generics([64, 32, f16])` is `.generics([(64, 32), f16])`.
    """
    shapes = [position for position, each in enumerate(signature.generics) if each.kind == "shape"]
    count, extra = len(signature.generics), len(flat) - len(signature.generics)
    if len(shapes) == 1 and extra >= 0:
        begin = shapes[0]  # from here on, the values that the other generics leave over are the shape's extents
        if not isinstance(flat[begin], tuple | list):
            end = begin + extra + 1
            flat = [*flat[:begin], tuple(flat[begin:end]), *flat[end:]]
            return list(flat)
    if extra and not count:
        raise GenericsError(f"{signature.name} has no generics; got {list(flat)!r}")
    if extra:
        names = ", ".join(each.name for each in signature.generics)
        values = f"{count} value{'s' * (count > 1)}, in the order ({names})"
        search = f"; a search takes a list for each configuration: [[{names}], ...]" if extra > 0 else ""
        raise GenericsError(f"{signature.name}: .generics takes {values}; got {len(flat)}: {list(flat)!r}{search}")
    return list(flat)


def _generic(signature: Signature, name: str) -> Generic:
    return next(each for each in signature.generics if each.name == name)


def _checked(signature: Signature, generic: Generic, value: Any) -> Any:
    """The value of a generic in one form: a dtype, a tuple of ints, or a constant.

    Raises GenericsError if it is of another kind.
    """
    if generic.kind == "dtype":
        try:
            return as_dtype(value)
        except TypeError as error:
            raise GenericsError(f"{signature.name}: generic {generic.name!r}: {error}") from None
    if generic.kind == "shape":
        # An int is a shape of one axis. Pyright: `isinstance` makes an Any a list of Unknown.
        extents = list[Any](value) if isinstance(value, tuple | list) else [value]  # pyright: ignore[reportUnknownArgumentType]
        # A bool is an int for Python, and no extent.
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in extents):
            raise GenericsError(f"{signature.name}: generic {generic.name!r} must be a tuple of ints, got {value!r}")
        return tuple(extents)
    return constant(value, generic.types, f"{signature.name}: generic {generic.name!r}")


class _Binder:
    """Collects the values of generics, and refuses contradictions.

    Args:
        signature: the kernel's signature.
        values: the caller's values; arguments add others.
    """

    def __init__(self, signature: Signature, values: Mapping[str, Any]) -> None:
        self.signature = signature
        self.values: dict[str, Any] = dict(values)
        self._origin: dict[str, str] = dict.fromkeys(values, "the generics given")

    def bind(self, name: str, value: Any, origin: str) -> None:
        """Record that an argument says `name` is `value`."""
        known_value = self.values.get(name, value)
        if known_value != value or type(known_value) is not type(value):  # the types too: `True == 1`
            raise GenericsError(
                f"{self.signature.name}: generic {name!r} is {self.values[name]!r} by {self._origin[name]}, "
                f"but {value!r} by {origin}"
            )
        self.values[name] = value
        self._origin.setdefault(name, origin)

    def finish(self) -> dict[str, Any]:
        """The values of all generics, in declared order; defaults for unbound ones."""
        values: dict[str, Any] = {}
        for generic in self.signature.generics:
            if generic.name in self.values:
                values[generic.name] = self.values[generic.name]
            elif not generic.required:
                values[generic.name] = _checked(self.signature, generic, generic.default)
            else:
                raise MissingGenericsError(
                    f"{self.signature.name}: no argument tells the value of the generic {generic.name!r}; "
                    f"give it by name ({self.signature.name}(..., {generic.name}=...)) or with .generics([...])"
                )
        return values


def specialize(
    signature: Signature, facts: Sequence[Fact], bound: Mapping[str, Any], max_divisibility: int = 16
) -> Specialization:
    """The specialization for arguments with these facts.

    Args:
        signature: the kernel's signature.
        facts: one for each launch parameter, in the signature's order.
        bound: the caller's generics by name, as `generic_values` checked them.
        max_divisibility: the largest alignment of tensors, in bytes, that types state.

    Raises:
        ArgumentError: an argument contradicts the signature; names the argument, what was expected, what came.
        GenericsError: generics are missing or contradict the arguments.
    """
    binder = _Binder(signature, bound)
    for parameter, fact in zip(signature.parameters, facts, strict=True):
        _bind_names(binder, parameter, fact)
    generics = binder.finish()
    types: dict[str, Type] = {}
    pointers: dict[str, DTypeLike] = {}
    for parameter, fact in zip(signature.parameters, facts, strict=True):
        if parameter.kind == "pointer":
            types[parameter.name] = TileType(u64)
            pointers[parameter.name] = _pointed(parameter, fact, generics)
        elif isinstance(fact, TensorFacts):
            types[parameter.name] = _tensor_type(signature, parameter, fact, generics, max_divisibility)
        else:
            dtype: Any = generics[parameter.dtype] if isinstance(parameter.dtype, str) else parameter.dtype
            types[parameter.name] = TileType(dtype)
    return Specialization(types, generics, pointers, signature.arrangement)


def _pointed(parameter: Parameter, fact: Fact, generics: Mapping[str, Any]) -> DTypeLike:
    """The dtype of a pointer's elements: declared, a generic, or the argument's."""
    if parameter.dtype is None:
        assert isinstance(fact, PointerFacts), "a launch asks for a pointer that knows its dtype"
        return fact.dtype
    return generics[parameter.dtype] if isinstance(parameter.dtype, str) else parameter.dtype


def _bind_names(binder: _Binder, parameter: Parameter, fact: Fact) -> None:
    """Bind the generics that a parameter names to the values of its argument."""
    if fact is None:  # a scalar: the signature and the generics decide its type
        return
    if isinstance(fact, PointerFacts):  # `check_pointer` has refused a dtype other than a declared one
        if isinstance(parameter.dtype, str):
            binder.bind(parameter.dtype, fact.dtype, f"the dtype of argument {parameter.title!r}")
        return
    dtype = fact.layout.dtype
    if isinstance(parameter.dtype, str):
        binder.bind(parameter.dtype, dtype, f"the dtype of argument {parameter.title!r}")
    elif parameter.dtype is not None and parameter.dtype is not dtype:
        raise ArgumentTypeError(
            f"{binder.signature.name}: argument {parameter.title!r} must be a tensor of {parameter.dtype}, got {dtype}"
            f"; convert it first"
        )
    if parameter.extents is None:
        return
    # The extents that a `Mut` declares are those of its tile: the kernel has one tile, and not the whole tensor.
    shape, what = (fact.layout.tile, "partition shape") if fact.layout.tile is not None else (fact.shape, "shape")
    if isinstance(parameter.extents, str):
        binder.bind(parameter.extents, tuple(shape), f"the {what} of argument {parameter.title!r}")
        return
    if len(parameter.extents) != len(shape):
        raise ArgumentError(
            f"{binder.signature.name}: argument {parameter.title!r} must have the {what} "
            f"({_show(parameter.extents)}), got {shape}: an annotation gives an extent for each axis, as in "
            f"Tensor[f32{', Dyn' * len(shape)}], or none"
        )
    for axis, (declared, extent) in enumerate(zip(parameter.extents, shape, strict=True)):
        if isinstance(declared, str):
            binder.bind(declared, extent, f"axis {axis} of argument {parameter.title!r} ({what} {shape})")
        elif isinstance(declared, int) and declared != extent:
            raise ArgumentError(
                f"{binder.signature.name}: argument {parameter.title!r} must have the {what} "
                f"({_show(parameter.extents)}), got {shape}: axis {axis} is {extent}, not {declared}"
            )


def _show(extents: tuple[Extent, ...]) -> str:
    return ", ".join(
        "Dyn" if each is None else repr(each.name) if isinstance(each, NamedExtent) else str(each) for each in extents
    )


def _tensor_type(
    signature: Signature, parameter: Parameter, fact: TensorFacts, generics: Mapping[str, Any], max_divisibility: int
) -> Type:
    """The type of a tensor parameter: a `TensorType`, or a `MutType` for a partition.

    Extents are in it where the signature declares them, or where they are 0.
    """
    layout = fact.layout
    # Bytes. Elements are aligned to their own size at least, as in `cap_alignment` (`declared.py`).
    alignment = max(layout.dtype.bits // 8, min(layout.alignment, max_divisibility))
    extents: tuple[int | None, ...] = (None,) * len(fact.shape)
    if parameter.kind != "mut" and parameter.extents is not None:  # of a `Mut` they are the tile's (`_bind_names`)
        declared = parameter.extents
        if isinstance(declared, str):  # one generic for the whole shape
            extents = tuple(generics[declared])
        else:
            # Each launch compares the extents of one name (`Signature.agreements`). Nothing is compiled for them.
            constants = [None if isinstance(extent, NamedExtent) else extent for extent in declared]
            extents = tuple(generics[extent] if isinstance(extent, str) else extent for extent in constants)
    # An axis without elements has extent 0 in the type. Passes then fold loads of the tensor to their padding, and no
    # target has to generate code for it.
    extents = tuple(0 if axis in layout.empty else extent for axis, extent in enumerate(extents))
    # A `SharedMut` is not stable: any tile block may write it while the kernel runs.
    tensor = TensorType(layout.dtype, extents, layout.strides, alignment, stable=parameter.kind != "shared")
    if layout.tile is None:
        return tensor
    if len(layout.tile) != len(fact.shape):
        raise ArgumentError(
            f"{signature.name}: argument {parameter.title!r} is a tensor of shape {fact.shape} partitioned by "
            f"{layout.tile}: the partition shape must have {len(fact.shape)} extents"
        )
    return MutType(tensor, layout.tile, layout.map, layout.exact)
