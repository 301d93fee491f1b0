"""A class is all there is to know of its operation: what pages and listings are made from must be there."""

import inspect
import re
from collections.abc import Iterator

import pytest

import cutile as ct
from cutile.command.ops import accuracy_of, sections
from cutile.frontend.calls import handler_of
from cutile.frontend.derived import Term, spelled
from cutile.frontend.registry import METHODS, OPERATIONS
from cutile.language import math
from cutile.language.declare import DECLARED
from cutile.ops import OPS
from cutile.ops.registry import FAMILIES, family

WRITTEN = {name: op for name, op in OPS.items() if op.spelled}
BY_STATEMENTS = {"for", "while", "if", "yield"}  # Python's own, and what ends a block
COMPILE_TIME = {  # decided by the front end: no operation comes of them
    "static_assert", "static_eval", "static_range",
    "scalar_to_tile", "tile_to_scalar", "permute_array", "get_shape_dim",
    # pointers are addresses: arithmetic on u64
    "addptr", "addptr_tile", "broadcast_ptr", "int_to_ptr", "pointer_to_tile", "ptr_to_int", "ptr_to_ptr",
    "reshape_ptr", "tile_to_pointer",
    "get_partition_token", "get_tensor_token", "join_tokens", "new_token_unordered", "set_tensor_token",
}  # fmt: skip


def spellings() -> Iterator[tuple[str, str]]:
    for name, op in WRITTEN.items():
        for spelling in op.spelled:
            yield name, spelling


def test_every_operation_says_how_it_is_written() -> None:
    silent = {name for name, op in OPS.items() if not op.spelled} - BY_STATEMENTS
    assert not silent, f"no `spelled` in the class of: {', '.join(sorted(silent))}"


@pytest.mark.parametrize(("name", "spelling"), list(spellings()))
def test_a_spelling_means_something(name: str, spelling: str) -> None:
    owner, _, method = spelling.rpartition(".")
    if owner.isidentifier():
        assert hasattr(getattr(ct, owner), method), f"{name}: there is no {spelling}"
        assert any(method == known for _, known in METHODS), f"{name}: the front end has no {spelling}"
    elif spelling.isidentifier():
        assert spelling in dir(ct)
        assert handler_of(getattr(ct, spelling)) is not None
    else:
        assert re.fullmatch(r"[~-]x|x \S{1,2} y|x\[:, None\]|(abs|round)\(x\)|(min|max)\(x, y\)", spelling)


def test_every_function_of_the_language_belongs_to_an_operation() -> None:
    owned = {spelling for _, spelling in spellings()} | COMPILE_TIME
    owned |= {name for name, each in DECLARED.items() if each.composed}
    lone = {name for name in OPERATIONS if name not in owned and name in dir(ct)}
    assert not lone, f"in no operation's `spelled`: {', '.join(sorted(lone))}"


@pytest.mark.parametrize("name", WRITTEN)
def test_the_docstring_has_an_example(name: str) -> None:
    """The class has one, or the functions of the language that it is written with."""
    op = OPS[name]
    documented = [op, *(getattr(ct, form) for form in op.spelled if form.isidentifier())]
    assert any(">>> " in (inspect.getdoc(each) or "") for each in documented), f"{name}: no docstring has an example"


SECTIONS = ("Args", "Returns", "Raises", "Example")


def incomplete(name: str) -> list[str]:
    """What a function's docstring lacks."""
    signature = DECLARED[name].signature
    parts = dict(sections(inspect.getdoc(getattr(ct, name)) or ""))
    needed = {"Args": bool(signature.parameters), "Returns": signature.return_annotation != "None"}
    needed["Raises"] = needed["Args"]
    said = re.findall(r"^([\w, ]+):", parts.get("Args", ""), re.M)
    parameters = {word for words in said for word in words.split(", ")}
    lacks = [f"{name}: no {part}" for part in SECTIONS if needed.get(part, True) and part not in parts]
    return lacks + [f"{name}: no words on {each}" for each in {*signature.parameters} - parameters]


def test_functions_say_what_they_take_give_and_refuse() -> None:
    assert [line for name in DECLARED for line in incomplete(name)] == []


def test_docstrings_state_the_accuracy_of_the_operation() -> None:
    wrong: list[str] = []
    for name in math.__all__:
        accuracy = accuracy_of(name if DECLARED[name].composed else spelled(name)[0].name)
        bounds = {dtype: accuracy.of(dtype) for dtype in ("f32", "f64") if accuracy.of(dtype) > 0.5}
        returns = " ".join(dict(sections(inspect.getdoc(getattr(ct, name)) or ""))["Returns"].split())
        said = {dtype: float(bound) for bound, dtype in re.findall(r"([\d.]+) ulp in (f\d+)", returns)}
        wrong += [f"{name}: the docstring says {said}, the operation {bounds}"] if said != bounds else []
    assert wrong == []


@pytest.mark.parametrize("name", WRITTEN)
def test_the_dtypes_are_said(name: str) -> None:
    assert OPS[name].dtypes()


def test_the_accuracy_is_a_bound() -> None:
    for name, op in OPS.items():
        for dtype in ("f16", "bf16", "f32", "f64"):
            assert 0.5 <= op.accuracy.of(dtype) <= 8, f"{name}: {dtype}"


def test_values_of_compositions_have_pythons_operators() -> None:
    """With a number on either side: `2.0 * x`, and `0.0 < x`, which Python asks of `x` as `x > 0.0`."""
    sides = {f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv") for side in ("", "r")}
    assert sides | {"__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__", "__lshift__"} <= set(vars(Term))


def test_a_family_is_a_file() -> None:
    assert all(family(op) in FAMILIES for op in OPS.values())
