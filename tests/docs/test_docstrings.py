"""Every docstring example runs and prints what it says."""

import doctest
import importlib

import pytest

from tests.architecture.sources import PACKAGES, ROOT, Module, modules

WITH_EXAMPLES = [
    module for module in modules(ROOT, *PACKAGES, "kernels") if ">>> " in module.path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", WITH_EXAMPLES, ids=lambda module: module.name)
def test_the_examples_of_a_module(module: Module) -> None:
    if module.name.startswith("cutile.backend.cuda"):
        pytest.importorskip("numba_cuda", reason="needs the extra cuda")
    import cutile as ct
    from tests.docs.examples import run

    found = importlib.import_module(module.name)
    failed, tried = doctest.testmod(
        found,
        extraglobs={"ct": ct, "run": run},
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS,
    )
    assert tried > 0
    assert failed == 0


def test_a_wrong_example_is_noticed() -> None:
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda text: None).failed == 1
