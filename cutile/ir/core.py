"""Values, operations, blocks and functions: SSA with structured control flow.

An operation class declares its fields. Its constructor, its accessors, its printed form and its verification follow
from them:

    class Exp2(Op, name="exp2"):
        x: Value = operand(FLOAT_TILE)
        flush_to_zero: bool = attribute(False)

IR does not change once it is built: `Builder` makes it, and `Rewriter` makes changed copies.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

from cutile.dtypes import DTYPES, EVERY_DTYPE, DTypeLike, i32
from cutile.errors import IRError, KernelTypeError, Location
from cutile.ir.types import MutType, TensorType, TileType, Type

__all__ = (
    "ANY_MUT", "ANY_TENSOR", "ANY_TILE", "Accuracy", "Attribute", "BITS_TILE", "BOOL_TILE", "Block", "COMPUTED_TILE",
    "CORRECT", "Constraint", "Effect", "FLOAT_TILE", "Function", "INT_TILE", "NUMBER_TILE", "Op", "PRODUCT_TILE",
    "SCALAR_INT", "UNUSED", "Value", "attribute", "operand", "operands", "region", "remedy",
)  # fmt: skip

Attribute = Any
"""A compile-time fact: int, float, bool, str, None, a dtype, or a tuple of these."""


class Effect(enum.IntEnum):
    """The side effects of an operation.

    Effects are ordered from none to the strongest. An operation with nested blocks has the strongest of its own and
    theirs.
    """

    NONE = 0
    """Pure: may be removed when unused, merged with an equal one, moved freely."""
    READ = 1
    """Reads memory: may be removed when unused; does not move over a WRITE to the same tensor."""
    WRITE = 2
    """Writes memory: stays, in order."""
    OUTSIDE = 3
    """Touches memory of other tile blocks too, or prints: it stays, in order, and tile blocks run in order."""


@dataclass(frozen=True)
class Accuracy:
    """The largest error of a float result, in units in the last place of the dtype.

    The error is the distance from the exact value. It is 0.5 where the result is rounded correctly to nearest. f16 and
    bf16 are computed in f32 and rounded once more: the f32 result is rounded itself, so that the error may be a little
    above 0.5.
    Integers and bools have no error.

    Attributes:
        f16, bf16, f32, f64: the bound for each dtype.
        note: what the bounds leave open, in a few words.

    Example:
        >>> Accuracy(f32=2.0, f64=1.0).of("f32"), CORRECT.of("f64"), CORRECT.of("i32")
        (2.0, 0.5, 0.0)
    """

    f16: float = 0.501
    bf16: float = 0.501
    f32: float = 0.5
    f64: float = 0.5
    note: str = ""

    def of(self, dtype: str) -> float:
        """The bound for a dtype by name; 0 for integers and bools."""
        bounds = {"f16": self.f16, "bf16": self.bf16, "f32": self.f32, "f64": self.f64}
        return bounds.get(dtype, 0.0)


CORRECT = Accuracy(f16=0.5, bf16=0.5)
"""Rounded correctly, in every dtype."""


class Value:
    """One SSA value: the result of an operation, or an argument of a block."""

    __slots__ = ("name", "type")

    def __init__(self, type: Type, name: str = "") -> None:
        self.type = type
        self.name = name  # the user's name where there is one; names need not be unique

    @property
    def tile(self) -> TileType:
        """The type, which must be a tile's."""
        if not isinstance(self.type, TileType):
            raise IRError(f"%{self.name} is a {self.type}, not a tile")
        return self.type

    @property
    def tensor(self) -> TensorType:
        """The type of the tensor behind a tensor or `Mut` parameter."""
        if isinstance(self.type, MutType):
            return self.type.tensor
        if isinstance(self.type, TensorType):
            return self.type
        raise IRError(f"%{self.name} is a {self.type}, not a tensor")

    @property
    def mut(self) -> MutType:
        """The type, which must be a `Mut` parameter's."""
        if not isinstance(self.type, MutType):
            raise IRError(f"%{self.name} is a {self.type}, not a Mut")
        return self.type

    def __repr__(self) -> str:
        return f"%{self.name or '_'}: {self.type}"


@dataclass(frozen=True)
class Constraint:
    """What an operand must be.

    Attributes:
        what: the words for an error.
        accepts: the test of the operand's type.
    """

    what: str
    accepts: Callable[[Type], bool]


ANY_TILE = Constraint("a tile", lambda t: isinstance(t, TileType))
SCALAR_INT = Constraint("an integer scalar", lambda t: isinstance(t, TileType) and t.is_scalar and t.dtype.is_integer)
FLOAT_TILE = Constraint("a tile of floats", lambda t: isinstance(t, TileType) and t.dtype.is_float)
INT_TILE = Constraint("a tile of integers", lambda t: isinstance(t, TileType) and t.dtype.is_integer)
BITS_TILE = Constraint(
    "a tile of integers or bools", lambda t: isinstance(t, TileType) and t.dtype.kind in ("int", "uint", "bool")
)
NUMBER_TILE = Constraint(
    "a tile of numbers", lambda t: isinstance(t, TileType) and t.dtype.kind in ("int", "uint", "float")
)
COMPUTED_TILE = Constraint("a tile that is computed with", lambda t: isinstance(t, TileType) and t.dtype.computes)
PRODUCT_TILE = Constraint("a tile of numbers", lambda t: isinstance(t, TileType) and not t.dtype.is_bool)
BOOL_TILE = Constraint("a tile of bools", lambda t: isinstance(t, TileType) and t.dtype.is_bool)
ANY_TENSOR = Constraint("a tensor", lambda t: isinstance(t, TensorType | MutType))
ANY_MUT = Constraint("a Mut tensor", lambda t: isinstance(t, MutType))


def remedy(type: Type, constraint: Constraint | None = None) -> str:
    """The remedy for an operand that is only stored, or of bools; else empty."""
    if not isinstance(type, TileType):
        return ""
    if type.dtype.is_bool and constraint is not None and constraint.accepts(TileType(i32, type.shape)):
        return "Convert it: x.astype(ct.i32)."
    if type.dtype.computes:
        return ""
    if type.dtype.format is None:  # f4e2m1fnx2: no float of its own
        return f"{type.dtype} holds pairs: take them apart with ct.unpack(x), then convert."
    return f"{type.dtype} is stored, converted and multiplied, but not computed with: ct.convert_tile(x, ct.f32) first."


@dataclass
class _Field:
    """A declared field of an operation's class, and the descriptor that reads it.

    Attributes:
        kind: "operand", "operands", "attribute" or "region".
        index: the position among the operands, or among the regions; for "operands", the position of the first one.
    """

    kind: str
    constraint: Constraint | None = None
    default: Any = None
    required: bool = True
    name: str = ""
    index: int = 0

    def __get__(self, op: Op | None, owner: type[Op]) -> Any:
        if op is None:
            return self
        if self.kind == "operand":
            return op.operands[self.index]
        if self.kind == "operands":
            return tuple(op.operands[self.index :])
        if self.kind == "attribute":
            return op.attributes[self.name]
        return op.regions[self.index]


def operand(constraint: Constraint = ANY_TILE) -> Any:
    """Declare one operand."""
    return _Field("operand", constraint)


def operands(constraint: Constraint | None = None) -> Any:
    """Declare trailing operands, any number of them.

    A class has at most one such field, after all fields of `operand`.
    """
    return _Field("operands", constraint)


_REQUIRED = object()  # None is a default that an attribute may have


def attribute(default: Any = _REQUIRED) -> Any:
    """Declare a compile-time fact."""
    return _Field("attribute", default=default, required=default is _REQUIRED)


def region() -> Any:
    """Declare a nested block."""
    return _Field("region")


class Block:
    """Arguments, then operations in order.

    The last operation of a nested block is a terminator.
    """

    __slots__ = ("arguments", "operations")

    def __init__(self, arguments: Sequence[Value] = (), operations: Sequence[Op] = ()) -> None:
        self.arguments = tuple(arguments)
        self.operations: list[Op] = list(operations)

    @property
    def terminator(self) -> Op:
        """The last operation."""
        return self.operations[-1]

    def walk(self) -> Iterator[Op]:
        """Every operation here and in nested blocks, outer before inner."""
        for op in self.operations:
            yield op
            for nested in op.regions:
                yield from nested.walk()


@dataclass_transform(eq_default=False, field_specifiers=(operand, operands, attribute, region))
class Op:
    """One operation.

    Subclasses declare fields, `infer` the result types, and define the meaning on NumPy arrays by `reference`.

    A class says everything about its operation: pages, listings and tests are made from it.

    Attributes:
        name: its name in the IR.
        spelled: how kernels write it: functions of `cutile` by name, methods as "Owner.name", operators as "x + y".
        accuracy: how far floats may be from the exact result.
        effect_of: its own effect, without that of nested blocks; see `effect`.
        terminates: whether it ends a nested block.
        isolated: whether its nested blocks read nothing from outside.
        fields: operands, attributes and regions, in order.
    """

    name: ClassVar[str] = ""
    spelled: ClassVar[tuple[str, ...]] = ()
    accuracy: ClassVar[Accuracy] = CORRECT
    effect_of: ClassVar[Effect] = Effect.NONE
    terminates: ClassVar[bool] = False
    isolated: ClassVar[bool] = False
    fields: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(
        cls,
        name: str = "",
        spelled: tuple[str, ...] = (),
        accuracy: Accuracy | None = None,
        effect: Effect | None = None,
        terminates: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        fields: dict[str, _Field] = dict(cls.fields)
        own = {key: field_ for key, field_ in vars(cls).items() if isinstance(field_, _Field)}
        fields.update(own)
        # Operands come first, since positional arguments are operands, and a base class may have declared attributes.
        # The sort is stable, so that inherited operands keep their positions.
        fields = dict(sorted(fields.items(), key=lambda item: item[1].kind == "attribute"))
        counts = {"operand": 0, "region": 0}
        for key, field_ in fields.items():
            field_.name = key
            if field_.kind in counts:
                field_.index = counts[field_.kind]
                counts[field_.kind] += 1
        for field_ in fields.values():
            if field_.kind == "operands":
                field_.index = counts["operand"]
        cls.fields = fields
        if name:
            cls.name = name
            cls.spelled = spelled
        if accuracy is not None:
            cls.accuracy = accuracy
        if effect is not None:
            cls.effect_of = effect
        if terminates is not None:
            cls.terminates = terminates

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.operands: tuple[Value, ...] = ()
        self.attributes: dict[str, Attribute] = {}
        self.regions: tuple[Block, ...] = ()
        self.results: tuple[Value, ...] = ()
        self.location: Location | None = None
        values = dict(zip(self.fields, args, strict=False)) | kwargs
        if len(args) > len(self.fields) or not values.keys() <= self.fields.keys():
            raise IRError(f"{self.name}: unexpected fields {sorted(values.keys() - self.fields.keys())}")
        singles: list[Value] = []
        trailing: tuple[Value, ...] = ()
        regions: list[Block] = []
        for key, field_ in self.fields.items():
            if field_.kind == "attribute":
                if field_.required and key not in values:
                    raise IRError(f"{self.name}: attribute {key!r} is missing")
                self.attributes[key] = values.get(key, field_.default)
            elif field_.kind == "operands":
                trailing = tuple(values.get(key, ()))
            elif key not in values:
                raise IRError(f"{self.name}: {field_.kind} {key!r} is missing")
            elif field_.kind == "operand":
                singles.append(values[key])
            else:
                regions.append(values[key])
        self.operands = (*singles, *trailing)
        self.regions = tuple(regions)

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def effect(self) -> Effect:
        """This operation's effect, nested blocks included."""
        nested = (op.effect for block in self.regions for op in block.operations)
        return max((self.effect_of, *nested))

    def operand_fields(self) -> Iterator[tuple[str, Constraint | None, Value]]:
        """Each operand with its field's name and constraint."""
        for key, field_ in self.fields.items():
            if field_.kind == "operand":
                yield key, field_.constraint, self.operands[field_.index]
            elif field_.kind == "operands":
                for position, value in enumerate(self.operands[field_.index :]):
                    yield f"{key}[{position}]", field_.constraint, value

    @classmethod
    def dtypes(cls) -> tuple[DTypeLike, ...]:
        """The element types of its first tile operand.

        An operation without such an operand has all of `DTYPES`.
        """
        for each in cls.fields.values():
            if each.kind in ("operand", "operands") and each.constraint is not None:
                accepted = tuple(dtype for dtype in EVERY_DTYPE if each.constraint.accepts(TileType(dtype)))
                if accepted:
                    return accepted
        return DTYPES

    def check(self) -> None:
        """Check the operands against their constraints.

        Raises:
            KernelTypeError: an operand is not what its field declares.
        """
        for key, constraint, value in self.operand_fields():
            if constraint is not None and not constraint.accepts(value.type):
                raise KernelTypeError(
                    f"{self.name}: operand {key!r} must be {constraint.what}, got {value.type}",
                    remedy=remedy(value.type, constraint),
                )

    def infer(self) -> tuple[Type, ...]:
        """The types of the results.

        Raises KernelTypeError where the operands do not fit together.
        """
        raise NotImplementedError(f"{type(self).__name__}.infer")

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """The operation's meaning, on NumPy arrays; a single result is one array."""
        raise NotImplementedError(f"{type(self).__name__}.reference")

    def copy_with(self, operands: Sequence[Value], regions: Sequence[Block], results: Sequence[Value]) -> Op:
        """A copy that differs in operands, regions and results."""
        copy = object.__new__(type(self))
        copy.operands = tuple(operands)
        copy.attributes = dict(self.attributes)
        copy.regions = tuple(regions)
        copy.results = tuple(results)
        copy.location = self.location
        return copy

    def __repr__(self) -> str:
        return f"<{self.name} {', '.join(map(repr, self.operands))} {self.attributes or ''}>"


UNUSED = "unused"
"""The fact of a function that has a line for each option and hint that the kernel does without, and why."""


@dataclass
class Function:
    """A kernel as IR.

    Attributes:
        name: the user's name of the kernel.
        body: its arguments are the kernel's parameters, in order.
        source: the user's source lines, by line number, for the comments in generated code.
        file: where the kernel was written.
        stage: which rules it obeys: "ir", or the backend that lowered it.
        facts: facts of the whole kernel, by name: requests of its author, such as `checks`, and decisions of a
            backend's `lower`, such as `shared_bytes`. They are printable attributes.
    """

    name: str
    body: Block
    source: dict[int, str] = field(default_factory=dict[int, str])
    file: str = ""
    stage: str = "ir"
    facts: dict[str, Attribute] = field(default_factory=dict[str, Attribute])

    def note_unused(self, lines: Iterable[str]) -> None:
        """Add lines to the fact `UNUSED`, each once."""
        if every := tuple(dict.fromkeys((*self.facts.get(UNUSED, ()), *lines))):
            self.facts[UNUSED] = every

    @property
    def parameters(self) -> tuple[Value, ...]:
        """The kernel's parameters."""
        return self.body.arguments

    def walk(self) -> Iterator[Op]:
        """Every operation, outer before inner."""
        return self.body.walk()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Function):
            return NotImplemented
        same = (self.name, self.stage, self.facts) == (other.name, other.stage, other.facts)
        return same and _same_block(self.body, other.body, {})

    __hash__ = None  # type: ignore[assignment]  # functions are compared by content, which may change


def _same_values(a: Sequence[Value], b: Sequence[Value], pairs: dict[Value, Value]) -> bool:
    """Whether newly defined values have the same types; if so, add them to `pairs`."""
    if len(a) != len(b) or any(x.type != y.type for x, y in zip(a, b, strict=True)):
        return False
    pairs.update(zip(a, b, strict=True))
    return True


def _same_block(a: Block, b: Block, pairs: dict[Value, Value]) -> bool:
    """Whether two blocks are the same program; names and locations may differ.

    `pairs` has the values of `b`, by the values of `a` to which they correspond.
    """
    if not _same_values(a.arguments, b.arguments, pairs) or len(a.operations) != len(b.operations):
        return False
    for x, y in zip(a.operations, b.operations, strict=True):
        if type(x) is not type(y) or repr(x.attributes) != repr(y.attributes):  # repr: NaN equals itself
            return False
        if len(x.operands) != len(y.operands) or len(x.regions) != len(y.regions):
            return False
        if any(pairs.get(p) is not q for p, q in zip(x.operands, y.operands, strict=True)):
            return False
        if not all(_same_block(p, q, pairs) for p, q in zip(x.regions, y.regions, strict=True)):
            return False
        if not _same_values(x.results, y.results, pairs):
            return False
    return True
