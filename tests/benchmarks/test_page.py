"""docs/benchmarks/README.md and docs/benchmarks/random/ show the kept figures and searches, and no others."""

from benchmarks.kernels.page import page, row
from benchmarks.record import FOLDER
from tests.properties import page as random_kernels


def test_the_page_is_what_the_files_say() -> None:
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page(FOLDER)


def test_a_row_shows_ratios_to_the_peers_that_ran() -> None:
    timings = {"cutile": {"median": 2.0}, "numpy": {"median": 3.0}, "copy": {"median": 1.0}}
    figures = {"kernel": "saxpy", "size": "8 f32", "error": 1e-7, "rate": 1234.5, "unit": "GB/s", "timings": timings}
    assert row(figures) == "| saxpy | 8 f32 | 1.0e-07 | 2 ms | 1,234 GB/s | 1.50 | – | 0.50 |"


def test_the_page_of_random_kernels_is_what_the_files_say() -> None:
    assert (random_kernels.FOLDER / "README.md").read_text(encoding="utf-8") == random_kernels.page(
        random_kernels.load()
    )


def test_each_kept_search_can_be_run_again() -> None:
    searches = random_kernels.load()
    assert searches
    for search in searches.values():
        assert search["commit"]
        assert f"--seed {search['seed']}" in search["command"]
        assert search["kernels"] >= sum(1 for _ in search["failures"])
