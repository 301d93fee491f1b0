"""What every test gets: golden files, the ``gpu`` marker, one Hypothesis profile for each place."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.golden import Golden
from tests.support.gpu import why_no_gpu

# Wall-clock deadlines fail on a busy machine for no fault of the code, so there are none. In CI the examples
# are the same each time; on a developer's machine they are new, and a failure prints how to repeat it.
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("local", parent=_COMMON)
settings.register_profile("ci", parent=_COMMON, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# Programs that tests start import what others have compiled to bytecode: a third of a second each.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Compilers make hundreds of thousands of objects that live for long. Collecting after every 2,000 of them, as Python
# does by itself, is a twentieth of a run, and a third of what parsing the sources takes.
gc.set_threshold(50_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="write tests/golden instead of comparing with it; read the difference before committing",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu") is not None]
    reason = why_no_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {reason}"))


@pytest.fixture(autouse=True, scope="session")
def cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled kernels of a test run are kept for that run only: no test passes because of an older one.

    Its processes share them, as those of a user do.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cutile-cache"
    os.environ["CUTILE_CACHE_DIR"] = str(folder)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt, also in runs that a shell began in the background.

    Such a shell has it ignored (POSIX, Shell Command Language, 2.11), and tests that interrupt a wait would wait for
    ever. Programs that tests begin inherit what is ignored, and not a handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def garbage_of_the_files_before() -> None:
    """Collect it once, and look no more at what stays: thousands of tests, modules, compiled kernels.

    Tests collect garbage to see what becomes of what they drop. Each would walk through all that has gathered since the
    run began, a second of work by its end.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return ``golden(name, text)``, which compares ``text`` with ``tests/golden/<name>``."""
    root = Path(__file__).parent / "golden"
    return Golden(root=root, update=bool(request.config.getoption("--update-golden")))
