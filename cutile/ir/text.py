"""IR as text, and back: `parse(print_function(f), OPS) == f`.

    func @copy(%y: mut<f32[?], strides [1], align 16, tile [256]>, %x: tensor<f32[?], strides [1], align 16>) stage ir {
      %i = tile_block_id() {axis = 0} : i32  // 12
      %t = load_tile(%x, %i) {shape = [256]} : f32<256>
      ...
    }

The number behind `//` is the user's line, and is not read back. Attributes with their default value are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cutile.dtypes import BY_NAME
from cutile.errors import IRError
from cutile.ir.core import Attribute, Block, Function, Op, Value
from cutile.ir.types import MutType, ResourceType, TensorType, TileType, Type, attribute_text


class _Names:
    """Names of values, each of them unique.

    The first value with the user's name `x` is `x`, the next ones are `x_1`, `x_2`. Values without a name are numbered.
    """

    def __init__(self) -> None:
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()

    def __getitem__(self, value: Value) -> str:
        if value not in self._names:
            stem = value.name or str(len(self._names))
            name, count = stem, 0
            while name in self._taken:
                count += 1
                name = f"{stem}_{count}"
            self._taken.add(name)
            self._names[value] = name
        return "%" + self._names[value]


def _attributes(attributes: dict[str, Attribute]) -> str:
    if not attributes:
        return ""
    return " {" + ", ".join(f"{key} = {attribute_text(value)}" for key, value in attributes.items()) + "}"


def _printed_attributes(op: Op) -> dict[str, Attribute]:
    """The attributes that differ from their defaults."""
    fields = op.fields
    return {
        key: value
        for key, value in op.attributes.items()
        # Targets add attributes that no class declares. By `repr`: NaN equals itself, and 1 is not True.
        if key not in fields or fields[key].required or repr(fields[key].default) != repr(value)
    }


def print_function(function: Function) -> str:
    """The text of a function."""
    names = _Names()
    parameters = ", ".join(f"{names[value]}: {value.type}" for value in function.parameters)
    head = f"func @{function.name}({parameters}) stage {function.stage}{_attributes(function.facts)} {{"
    return "\n".join([head, *_print_block(function.body, names, "  "), "}"]) + "\n"


def _print_block(block: Block, names: _Names, indent: str) -> Iterator[str]:
    for op in block.operations:
        results = ", ".join(names[value] for value in op.results)
        operands = ", ".join(names[value] for value in op.operands)
        types = ", ".join(str(value.type) for value in op.results)
        attributes = _attributes(_printed_attributes(op))
        line = f"{indent}{results + ' = ' if results else ''}{op.name}({operands}){attributes}"
        line += f" : {types}" if types else ""
        place = f"  // {op.location.line}" if op.location else ""
        if not op.regions:
            yield line + place
            continue
        yield line + " {" + place
        for position, nested in enumerate(op.regions):
            if position:
                yield indent + "} {"
            arguments = ", ".join(f"{names[value]}: {value.type}" for value in nested.arguments)
            yield f"{indent}^({arguments}):"
            yield from _print_block(nested, names, indent + "  ")
        yield indent + "}"


# Any character beyond ASCII counts as a letter of a name. `\w` would not: Python's identifiers have more letters.
_TOKEN = re.compile(
    r"\s+|//[^\n]*|(?P<string>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")"
    r"|(?P<name>[%@!]?(?:[A-Za-z_]|[^\x00-\x7f])(?:[\w.]|[^\x00-\x7f])*|%\d+(?:_\d+)?)"
    r"|(?P<number>-?(?:inf|\d+\.?\d*(?:e[+-]?\d+)?))|(?P<mark>[(){}\[\]<>:,=^?-])"
)


class _Parser:
    """A recursive-descent parser over the printed form."""

    def __init__(self, text: str, operations: Mapping[str, type[Op]]) -> None:
        self._operations = operations
        self._tokens: list[str] = []
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                raise IRError(f"IR text: cannot read {text[position : position + 20]!r}")
            if token.lastgroup:
                self._tokens.append(token.group())
            position = token.end()
        self._tokens.append("")
        self._at = 0
        self._values: dict[str, Value] = {}

    @property
    def _next(self) -> str:
        return self._tokens[self._at]

    def _take(self, expected: str | None = None) -> str:
        token = self._next
        if expected is not None and token != expected:
            before = " ".join(self._tokens[max(0, self._at - 8) : self._at])
            raise IRError(f"IR text: expected {expected!r}, got {token!r} after {before!r}")
        self._at += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._next == token:
            self._at += 1
            return True
        return False

    def function(self) -> Function:
        self._take("func")
        name = self._take()[1:]
        self._take("(")
        parameters = self._parameters()
        self._take("stage")
        stage = self._take()
        # `{` opens the facts if `key =` follows. Otherwise it opens the body, whose first line may be `%x =`.
        facts = self._dictionary() if self._opens_dictionary() else {}
        self._take("{")
        body = self._block(parameters)
        self._take("}")
        self._take("")
        return Function(name, body, stage=stage, facts=facts)

    def _opens_dictionary(self) -> bool:
        return (
            self._next == "{" and self._tokens[self._at + 2] == "=" and not self._tokens[self._at + 1].startswith("%")
        )

    def _parameters(self) -> list[Value]:
        values: list[Value] = []
        while not self._accept(")"):
            name = self._take()
            self._take(":")
            values.append(self._define(name, self._type()))
            self._accept(",")
        return values

    def _define(self, name: str, type: Type) -> Value:
        stem = re.sub(r"^%", "", name)
        value = Value(type, "" if stem[0].isdigit() else stem)
        self._values[name] = value
        return value

    def _list(self, item: Any) -> tuple[Any, ...]:
        self._take("[")
        items: list[Any] = []
        while not self._accept("]"):
            items.append(item())
            self._accept(",")
        return tuple(items)

    def _extent(self) -> int | None:
        return None if self._accept("?") else int(self._take())

    def _described(self) -> TensorType:
        dtype = BY_NAME[self._take()]
        shape = self._list(self._extent)
        self._take(",")
        self._take("strides")
        strides = self._list(self._extent)
        self._take(",")
        self._take("align")
        alignment = int(self._take())
        stable = not (self._next == "," and self._tokens[self._at + 1] == "unstable")
        if not stable:
            self._at += 2
        return TensorType(dtype, shape, strides, alignment, stable)

    def _type(self) -> Type:
        head = self._take()
        if head in ("tensor", "mut"):
            self._take("<")
            tensor = self._described()
            type: Type = tensor
            if head == "mut":
                self._take(",")
                self._take("tile")
                tile = self._list(lambda: int(self._take()))
                mapped, exact = None, True
                while self._accept(","):
                    if self._take() == "map":
                        mapped = self._list(lambda: int(self._take()))
                    else:
                        exact = False
                type = MutType(tensor, tile, mapped, exact)
            self._take(">")
            return type
        if head in ResourceType.by_head:
            return self._resource(ResourceType.by_head[head])
        shape: tuple[int, ...] = ()
        if self._accept("<"):
            words = ""
            while not self._accept(">"):  # "128x64" is two tokens, `128` and `x64`
                words += self._take()
            shape = tuple(int(word) for word in words.split("x"))
        return TileType(BY_NAME[head], shape)

    def _resource(self, kind: type[ResourceType]) -> ResourceType:
        self._take("<")
        return kind(**self._entries(">"))

    def _dictionary(self) -> dict[str, Attribute]:
        self._take("{")
        return self._entries("}")

    def _entries(self, end: str) -> dict[str, Attribute]:
        entries: dict[str, Attribute] = {}
        while not self._accept(end):
            key = self._take()
            self._take("=")
            entries[key] = self._attribute()
            self._accept(",")
        return entries

    def _attribute(self) -> Attribute:
        if self._next == "[":
            return self._list(self._attribute)
        token = self._take()
        if token.startswith("!"):
            return BY_NAME[token[1:]]
        if token[0] in "'\"":
            return ast.literal_eval(token)
        words = {"True": True, "False": False, "None": None, "nan": float("nan"), "inf": float("inf")}
        if token in words:
            return words[token]
        return float(token) if re.search(r"[.e]|inf", token) else int(token)

    def _block(self, arguments: list[Value]) -> Block:
        operations: list[Op] = []
        while self._next != "}":
            operations.append(self._operation())
        return Block(arguments, operations)

    def _operation(self) -> Op:
        names: list[str] = []
        while self._next.startswith("%"):
            names.append(self._take())
            self._accept(",")
        if names:
            self._take("=")
        name = self._take()
        if name not in self._operations:
            raise IRError(f"IR text: there is no operation {name!r}")
        self._take("(")
        operands: list[Value] = []
        while not self._accept(")"):
            operands.append(self._values[self._take()])
            self._accept(",")
        attributes = self._dictionary() if self._opens_dictionary() else {}
        types: list[Type] = []
        if self._accept(":"):
            types.append(self._type())
            while self._accept(","):
                types.append(self._type())
        regions: list[Block] = []
        while self._accept("{"):
            self._take("^")
            self._take("(")
            inner = self._parameters()
            self._take(":")
            regions.append(self._block(inner))
            self._take("}")
        # Not by the constructor: the text has operands and regions in order already, and maybe a target's attributes.
        op = object.__new__(self._operations[name])
        op.operands = tuple(operands)
        left_out = {key: each.default for key, each in op.fields.items() if each.kind == "attribute"}
        op.attributes = {key: attributes.get(key, each) for key, each in left_out.items()} | attributes
        op.regions = tuple(regions)
        op.results = tuple(self._define(each, type) for each, type in zip(names, types, strict=True))
        op.location = None
        return op


def parse(text: str, operations: Mapping[str, type[Op]]) -> Function:
    """The function that `text` describes.

    `operations` has the classes of operations by name, as `cutile.ops.OPS`.

    Raises:
        IRError: the text is no IR; says what was expected where.
    """
    return _Parser(text, operations).function()
