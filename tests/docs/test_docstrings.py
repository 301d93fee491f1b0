"""Every docstring example runs and prints what it says."""

import doctest
import importlib
from contextlib import nullcontext

import pytest

from cutile.command.ops import Entry, catalogue, shows
from tests.architecture.sources import PACKAGES, ROOT, Module, modules

WITH_EXAMPLES = [
    module for module in modules(ROOT, *PACKAGES, "kernels") if ">>> " in module.path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", WITH_EXAMPLES, ids=lambda module: module.name)
def test_the_examples_of_a_module(module: Module) -> None:
    if module.name.startswith("cutile.backend.cuda"):
        pytest.importorskip("numba_cuda", reason="needs the extra cuda")
    if module.name.startswith("cutile.torch"):
        pytest.importorskip("torch", reason="needs PyTorch")
    if module.name == "cutile.ray":
        pytest.importorskip("ray", reason="needs Ray")
    import cutile as ct
    from tests.docs.examples import run

    # What an operation or a kernel means is the same on every backend, and tests/ops and tests/kernels have each
    # compiled. So their examples run by the backend that compiles nothing.
    by_reference = module.name.startswith(("cutile.language", "cutile.ops", "kernels"))
    with ct.use_backend("reference") if by_reference else nullcontext():
        failed, tried = doctest.testmod(
            importlib.import_module(module.name),
            extraglobs={"ct": ct, "api": ct.api, "run": run},
            optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS,
        )
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_an_operation_has_an_example_that_uses_it(entry: Entry) -> None:
    """It is a docstring's of a module above, so that it runs."""
    assert entry.example, f"{entry.name} has no example in its docstring"
    assert shows(entry.name, entry.example), f"the example of {entry.name} does not use it:\n{entry.example}"


def test_an_example_of_something_else_is_noticed() -> None:
    assert shows("Mut.load", ">>> y.load()")
    assert not shows("Mut.load", ">>> ct.load_tile(x, (2,), (0,))")
    assert not shows("exp", ">>> ct.exp2(x)")


def test_a_wrong_example_is_noticed() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda text: None).failed == 1
