"""Every class of Python's syntax is compiled, which a sample shows, or refused with a message of its own."""

from __future__ import annotations

import ast
import sys

import pytest

from cutile.errors import KernelSyntaxError
from cutile.frontend import simple_statements
from tests.frontend.errors import REFUSED
from tests.frontend.test_errors import message_of, mistake
from tests.samples.control import SAMPLES
from tests.support.golden import Golden

NO_PART_OF_A_FUNCTION = {
    "Module", "Interactive", "Expression", "FunctionType", "TypeIgnore",  # what a text is parsed into
    "alias", "withitem", "ExceptHandler", "Interpolation",                # parts of what is refused
    "Await", "AsyncWith", "AsyncFor",                                     # parts of async functions, which are refused
    "TypeVar", "ParamSpec", "TypeVarTuple",                               # parts of signatures
    "Load", "Store", "Del",                                               # how a name is used
}  # fmt: skip
NEWER = {"TryStar": (3, 11), "TypeAlias": (3, 12), "TemplateStr": (3, 14)}


def concrete() -> set[str]:
    """The classes of nodes that a parser makes."""
    nodes = {each for each in vars(ast).values() if isinstance(each, type) and issubclass(each, ast.AST)}
    abstract = {base for each in nodes for base in each.__bases__}
    old = {"slice", "Index", "ExtSlice", "Suite", "AugLoad", "AugStore", "Param", "Num", "Str", "Bytes", "NameConstant"}
    return {each.__name__ for each in nodes - abstract} - old - {"Ellipsis"}


def sampled() -> set[str]:
    return {type(node).__name__ for sample in SAMPLES.values() for node in ast.walk(ast.parse(sample.text))}


def test_every_node_is_sampled_or_refused() -> None:
    missing = concrete() - sampled() - REFUSED.keys() - NO_PART_OF_A_FUNCTION
    assert not missing, f"neither a sample nor a refusal has {', '.join(sorted(missing))}"


def test_every_refusal_is_tested() -> None:
    missing = simple_statements.REFUSED.keys() - REFUSED.keys()
    assert not missing, f"no golden file shows the refusal of {', '.join(sorted(missing))}"


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_construct(name: str, golden: Golden) -> None:
    if sys.version_info < NEWER.get(name, (3, 11)):
        pytest.skip("this Python has no such syntax")
    error = mistake(REFUSED[name])
    assert isinstance(error, KernelSyntaxError)
    golden(f"errors/refused/{name}", message_of(error))


def test_no_two_refusals_say_the_same() -> None:
    said = [words for words, _ in simple_statements.REFUSED.values()]
    assert len(set(said)) == len(said)
