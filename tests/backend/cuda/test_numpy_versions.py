"""numba-cuda registers a function that NumPy 2.5 has no more: it is imported all the same, and the name is not left."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

from cutile.backend.cuda import toolchain

CHILD = """
import importlib, sys
import numpy as np
vars(np).pop("row_stack", None)  # of NumPy before 2.5, made like 2.5
import cutile.backend.cuda.build
import numba.cuda.np.arrayobj  # as a first compilation does
assert "row_stack" not in vars(np)
functions, linalg = (importlib.import_module(f"numba.cuda.np.{name}") for name in ("arraymath", "linalg"))
assert functions.ensure_blas is linalg.ensure_blas is not None
assert linalg.ensure_blas.__module__ == linalg.__name__
assert "scipy.linalg" not in sys.modules  # 0.1 s of a first kernel
"""


@pytest.mark.slow
def test_the_compiler_is_imported_where_numpy_lacks_what_it_registers() -> None:
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", CHILD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("there", [True, False])
def test_the_name_is_there_for_one_import_only(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    def row_stack() -> None:
        """What an older NumPy has."""

    seen: list[object] = []

    def imported(name: str) -> None:
        warnings.warn("The 'generic' unit for NumPy timedelta is deprecated", DeprecationWarning, stacklevel=1)
        seen.append(vars(np)["row_stack"])
        if name.endswith("arrayobj"):
            raise ImportError(name)

    if there:
        monkeypatch.setitem(vars(np), "row_stack", row_stack)
    else:
        monkeypatch.delitem(vars(np), "row_stack", raising=False)
    monkeypatch.setattr(toolchain.importlib, "import_module", imported)
    with pytest.raises(ImportError, match="arrayobj"):
        toolchain.import_numba_cuda()
    assert seen == [row_stack if there else np.vstack] * 2
    assert vars(np).get("row_stack") is (row_stack if there else None)
