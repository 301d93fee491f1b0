"""Tensors as scalars: an address, extents and strides.

As scalars, tensors pass through branches and loops, and are cut at bounds that are known only when the kernel runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cutile.dtypes import DTypeLike, i32, i64, u64
from cutile.frontend.frame import Frame
from cutile.frontend.structure import mapped, same_constant
from cutile.frontend.values import PartitionRef, SharedRef, TensorParts, TensorRef
from cutile.ir import Constant, TileType, Value
from cutile.ops.bound import CheckIndex
from cutile.ops.cast import Convert
from cutile.ops.compare import Eq, Select
from cutile.ops.memory import TensorDim
from cutile.ops.pointer import TensorAddress, TensorStride
from cutile.ops.view import TensorView


@dataclass(frozen=True)
class Form:
    """The constants of a tensor's type; each None is a part, a scalar at run time.

    Attributes:
        shape: the extents; None for parts.
        strides: 1, or None for parts.
        alignment: of the first element, in bytes.
    """

    dtype: DTypeLike
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    alignment: int

    @staticmethod
    def of(tensor: Value) -> Form:
        """The form of a tensor."""
        type = tensor.tensor
        return Form(type.dtype, type.shape, type.strides, type.alignment)

    def join(self, other: Form) -> Form | None:
        """The form with the constants that both have; None if dtypes or ranks differ."""
        if self.dtype is not other.dtype or len(self.shape) != len(other.shape):
            return None
        return Form(
            self.dtype,
            tuple(a if a == b else None for a, b in zip(self.shape, other.shape, strict=True)),
            tuple(a if a == b else None for a, b in zip(self.strides, other.strides, strict=True)),
            min(self.alignment, other.alignment),
        )

    def types(self) -> list[TileType]:
        """The types of the parts: the address, then open extents, then open strides."""
        extents = [TileType(i32)] * self.shape.count(None)
        return [TileType(u64), *extents, *[TileType(i64)] * self.strides.count(None)]


def parts_of(frame: Frame, tensor: Value, form: Form) -> list[Value]:
    """The parts of a tensor in a form, all of whose constants its type has."""
    type = tensor.tensor
    parts = [frame.emit(TensorAddress(x=tensor))]
    for axis, (known, extent) in enumerate(zip(form.shape, type.shape, strict=True)):
        if known is None:
            dim = Constant(value=extent, dtype=i32, shape=()) if extent is not None else TensorDim(x=tensor, axis=axis)
            parts.append(frame.emit(dim))
    for axis, (known, stride) in enumerate(zip(form.strides, type.strides, strict=True)):
        if known is None:
            step = Constant(value=1, dtype=i64, shape=()) if stride == 1 else TensorStride(x=tensor, axis=axis)
            parts.append(frame.emit(step))
    return parts


def tensor_of(frame: Frame, form: Form, parts: Sequence[Value], name: str = "") -> TensorRef:
    """The tensor that is made of these parts."""
    view = TensorView(
        address=parts[0],
        numbers=tuple(parts[1:]),
        dtype=form.dtype,
        shape=form.shape,
        strides=form.strides,
        alignment=form.alignment,
    )
    return TensorRef(frame.emit(view, name))


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor that is read, or a partition of one."""
    if isinstance(value, SharedRef):
        return False  # `shared_accesses.py` follows accesses by the parameter, which a loop would hide
    return isinstance(value, TensorRef) or (isinstance(value, PartitionRef) and not value.writes)


def joined_form(a: Any, b: Any) -> Form | None:
    """The common form of two tensors; None if no form fits both.

    Partitions must be alike but for their tensors.
    """
    if not is_tensor(a) or not is_tensor(b) or type(a) is not type(b):
        return None
    if isinstance(a, PartitionRef) and replace(a, value=b.value) != b:
        return None
    return Form.of(a.value).join(Form.of(b.value))


def joined_forms(forms: Mapping[int, Form], old: Sequence[Any], new: Sequence[Any]) -> dict[int, Form] | None:
    """The common forms of tensors that a loop carries; None where two have none.

    By the number of the leaf, as `forms`.

    Args:
        forms: the forms so far.
        old: the leaves of the variable's template, as `tensors_in` gives them.
        new: the leaves at the end of the body.
    """
    joined = dict(forms)
    for k, (before, after) in enumerate(zip(old, new, strict=True)):
        if before is None or after is None or same_constant(before, after):
            continue
        form = joined_form(before.template if isinstance(before, TensorParts) else before, after)
        if form is not None and isinstance(before, TensorParts):
            form = form.join(before.form)
        if form is None:
            return None
        joined[k] = form
    return joined


def in_parts(frame: Frame, value: Any, templates: Sequence[Any]) -> Any:
    """A value with `TensorParts` in the place of tensors, where `templates` has them."""
    rest = iter(templates)

    def apart(leaf: Any) -> Any:
        template = next(rest)
        if not isinstance(template, TensorParts) or not is_tensor(leaf):
            return leaf
        return TensorParts(template.form, template.template, tuple(parts_of(frame, leaf.value, template.form)))

    return mapped(value, apart)


def like(template: Any, tensor: TensorRef) -> Any:
    """A tensor, cut into tiles as `template` is, if that is a partition."""
    return replace(template, value=tensor.value) if isinstance(template, PartitionRef) else tensor


def one_of(frame: Frame, items: Sequence[Any], index: Value) -> Any:
    """The tensor of a tuple at an index that is known only when the kernel runs.

    None where the items are not tensors of a common form.
    """
    if not items or not index.tile.is_scalar or index.tile.dtype.kind not in ("int", "uint"):
        return None
    form: Form | None = Form.of(items[0].value) if is_tensor(items[0]) else None
    for each in items[1:]:
        other = joined_form(items[0], each)
        form = None if form is None or other is None else form.join(other)
    if form is None:
        return None
    place = index if index.tile.dtype in (i32, i64) else frame.emit(Convert(x=index, dtype=i64))
    count = Constant(value=len(items), dtype=i32, shape=())
    text = f"the index into a tuple of {len(items)} tensors"
    frame.builder.add(CheckIndex(index=place, count=frame.emit(count), what=text))
    *others, last = [parts_of(frame, each.value, form) for each in items]
    parts = last
    for k in reversed(range(len(others))):
        number = frame.emit(Constant(value=k, dtype=place.tile.dtype, shape=()))
        here = frame.emit(Eq(x=place, y=number))
        pairs = zip(others[k], parts, strict=True)
        parts = [frame.emit(Select(condition=here, x=one, y=other)) for one, other in pairs]
    return like(items[0], tensor_of(frame, form, parts))


def taken_apart(value: Any, forms: Mapping[int, Form]) -> Any:
    """A value with `TensorParts` in the place of the tensors that have a form.

    The scalars of the parts are stand-ins: the loop replaces them by its arguments.

    Args:
        forms: by the number of the leaf, counted from the left.
    """
    count = itertools.count()

    def apart(leaf: Any) -> Any:
        form = forms.get(next(count))
        return leaf if form is None else TensorParts(form, leaf, tuple(Value(type) for type in form.types()))

    return mapped(value, apart)


def put_together(frame: Frame, value: Any, name: str) -> Any:
    """A value with tensors in the place of their parts."""

    def together(leaf: Any) -> Any:
        if not isinstance(leaf, TensorParts):
            return leaf
        return like(leaf.template, tensor_of(frame, leaf.form, leaf.items, name))

    return mapped(value, together)


def tensors_in(value: Any) -> list[Any]:
    """The leaves of a value, from left to right; None for those that are no tensors."""
    tensors: list[Any] = []
    mapped(value, lambda leaf: tensors.append(leaf if is_tensor(leaf) or isinstance(leaf, TensorParts) else None))
    return tensors
