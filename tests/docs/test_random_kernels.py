"""docs/benchmarks/random/ shows the kept searches for random kernels and no others."""

from tests.properties.page import FOLDER, load, page


def test_the_page_is_what_the_files_say() -> None:
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page(load())


def test_each_kept_search_can_be_run_again() -> None:
    searches = load()
    assert searches
    for search in searches.values():
        assert search["commit"]
        assert f"--seed {search['seed']}" in search["command"]
        assert search["kernels"] >= sum(1 for _ in search["failures"])
