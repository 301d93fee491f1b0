"""Which kernels pin their tile blocks to linear order, and the reason that is given."""

import pytest

from cutile.analysis.structure import is_reorderable, why_linear
from tests.support.programs import mut, program, scalar, tensor


def why(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    types = {"y": mut(8), "x": tensor(1), "n": scalar()}
    function = program(f"def k(y: Mut, x: Tensor, n: f32):\n{lines}    y.store(y.load())\n", types)
    assert is_reorderable(function) is (why_linear(function) == "")
    return why_linear(function)


@pytest.mark.parametrize(
    "body", ["y.store(ct.gather(x, ct.iota((8,))))", "assert n > 0.0", "t = ct.load_tile_like(x, y)"]
)
def test_a_kernel_that_writes_its_own_tiles_may_be_reordered(body: str) -> None:
    assert why(body) == ""


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("print(n)", "print"),
        ("ct.atomic_add(y, 0, n)", "atomic_rmw"),
        ("ct.atomic_cas(y, 0, n, n)", "atomic_cas"),
        ("ct.scatter(y, 0, n)", "store_pointer"),
        ("t = ct.gather(y, ct.iota((8,)))", "load_pointer"),
        ("if n > 0.0:\n    for i in range(3):\n        print(i)", "print"),
    ],
)
def test_what_reaches_beyond_the_block_is_named(body: str, name: str) -> None:
    assert why(body).startswith(name + " in line ")
    assert why(body).endswith("reaches beyond the tile block")
