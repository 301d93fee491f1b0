"""The page of errors names every error there is, and nothing that is not."""

from __future__ import annotations

import cuda_async.errors
import cutile.errors
from tests.docs.pages import ROOT, cited, names, resolve, rows, texts, wrong

PAGE = ROOT / "docs" / "reference" / "errors.md"


def test_names_and_tests_exist() -> None:
    assert wrong(PAGE) == []


def test_every_row_names_a_failure_an_error_and_a_test() -> None:
    table = rows(PAGE)
    assert len(table) > 30
    for row in table:
        failure, error, variant, test = row.cells
        assert failure, row
        assert variant, row
        assert cited(test), row
        assert all((ROOT / each.partition("::")[0]).is_file() for each in cited(test)), f"a folder is no test: {row}"
        for name in names(error):
            assert issubclass(resolve(name), Exception), row
        assert names(error) or error == "`TypeError`", row


def test_every_error_is_on_the_page() -> None:
    mentioned = {resolve(name) for _, text in texts(PAGE) for name in names(text)}
    for module in (cuda_async.errors, cutile.errors):
        for name, each in vars(module).items():
            if isinstance(each, type) and issubclass(each, Exception) and each.__module__ == module.__name__:
                assert each in mentioned, f"{name} is not on the page"
