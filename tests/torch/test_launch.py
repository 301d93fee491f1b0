# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""`cutile.torch.launch`: what it launches, what it remembers, and what it refuses. On the CPU."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import cutile as ct  # noqa: E402
import cutile.torch as ctt  # noqa: E402
from cuda_async import Instrument, ObservedOperation, instrumented  # noqa: E402
from cutile import Mut, Tensor, api  # noqa: E402
from cutile.errors import ArgumentError, ArgumentTypeError, GenericsError, LaunchError  # noqa: E402
from cutile.torch.launches import MAX_LAUNCHES  # noqa: E402
from tests.torch import kernels  # noqa: E402


def known(kernel: Any) -> dict[Any, Any]:
    return kernel.launchable.memo["torch"].known


def test_it_is_done_when_it_returns() -> None:
    x, y = torch.randn(1000), torch.ones(1000)
    for a in (2.0, 3, torch.tensor(4.0).item()):
        before = y.clone()
        ctt.launch(kernels.axpy, ctt.partition(y, (256,)), a, x)
        torch.testing.assert_close(y, a * x + before)
    before = y.clone()
    ctt.launch(kernels.axpy, ctt.partition(y, 256), 70000.0, x)  # beyond what every float dtype holds
    torch.testing.assert_close(y, 70000 * x + before)
    assert len(known(kernels.axpy)) == 2  # floats, and an int


def test_generics_options_and_grids() -> None:
    x, y = torch.arange(8.0), torch.zeros(8)
    ctt.launch(kernels.scaled, ctt.partition(y, (4,)), 3, x)
    assert y.tolist() == (6 * x).tolist()
    for _ in range(2):
        ctt.launch(kernels.scaled, ctt.partition(y, (4,)), 5, x, FACTOR=7)
        assert y.tolist() == (35 * x).tolist()
    ctt.launch(kernels.scaled, ctt.partition(y, (4,)), 1, x, options=ct.CompileOptions(num_worker_warps=4))
    assert y.tolist() == (2 * x).tolist()
    ctt.launch(kernels.scaled, ctt.partition(y, (4,)).prefix(), 0, x, grid=(1, 1, 1))
    assert y.tolist() == [0, 0, 0, 0, 8, 10, 12, 14]


LAYOUTS = st.tuples(
    st.integers(1, 70),  # rows
    st.integers(1, 40),  # columns
    st.sampled_from(["rows", "columns", "every other", "behind one"]),
    st.sampled_from(["float32", "float64"]),
)


def laid_out(rows: int, columns: int, layout: str, dtype: str) -> Any:
    values = torch.randn(rows * columns * 2 + 1, dtype=getattr(torch, dtype))
    match layout:
        case "rows":
            return values[: rows * columns].view(rows, columns)
        case "columns":
            return values[: rows * columns].view(columns, rows).t()
        case "every other":
            return values[:-1].view(rows, columns * 2)[:, ::2]
        case _:
            return values[1 : rows * columns + 1].view(rows, columns)


@hypothesis_settings(max_examples=25)
@given(layouts=st.lists(LAYOUTS, min_size=1, max_size=6))
def test_any_layout_after_any_other(layouts: list[Any]) -> None:
    """What is remembered of one layout is used for no other."""
    for rows, columns, layout, dtype in layouts:
        x, y = laid_out(rows, columns, layout, dtype), laid_out(rows, columns, "every other", dtype)
        ctt.launch(kernels.silu, ctt.partition(y, (8, 16)), x)
        torch.testing.assert_close(y, torch.nn.functional.silu(x), rtol=1e-4, atol=1e-5)


def test_nothing_is_written_where_there_are_no_elements() -> None:
    ctt.launch(kernels.silu, ctt.partition(torch.empty(0, 8), (4, 8)), torch.empty(0, 8))


def test_what_has_no_elements_is_read_as_padding() -> None:
    for shape in ((4, 8), (0, 8), (4, 0)):
        y, x = torch.full((4, 8), 7.0), torch.ones(shape)
        ctt.launch(kernels.silu, ctt.partition(y, (4, 8)), x)
        torch.testing.assert_close(y, torch.nn.functional.silu(torch.full((4, 8), float(x.numel() > 0))))


class Wrapper(torch.Tensor):
    """A subclass."""


X, Y = torch.ones(8), torch.zeros(8)
WANTS = torch.ones(8, requires_grad=True)
OURS = api.ones((8,)).sync()
WRONG = [
    ((kernels.silu, Y, X), ArgumentTypeError, r"'y' is written, so it must be a partition, got Tensor; write cutile"),
    ((kernels.silu, ctt.partition(Y, (4,)), ctt.partition(X, (4,))), ArgumentTypeError, "'x' is read, so it must be a"),
    ((kernels.silu, ctt.partition(Y, (4,)), [1.0]), ArgumentTypeError, "'x' must be a tensor of PyTorch's, got list"),
    ((kernels.silu, ctt.partition(Y, (4,)), OURS), ArgumentTypeError, "one of ours is torch.from_dlpack"),
    ((kernels.silu, ctt.partition(Y, (4,)), X.numpy()), ArgumentTypeError, "torch.from_numpy"),
    (
        (kernels.silu, ctt.partition(Y, (4,)), WANTS),
        ArgumentError,
        "'x' requires a gradient, and a launch",
    ),
    ((kernels.silu, ctt.partition(WANTS, (4,)), X), ArgumentError, "'y' requires a gradient"),
    ((kernels.silu, ctt.partition(Y, (4,)), X.to("meta")), ArgumentError, "'x' is on the device meta; kernels run on"),
    ((kernels.silu, ctt.partition(Y, (4,)), X.to_sparse()), ArgumentError, "'x' has the layout torch.sparse_coo"),
    (
        (kernels.silu, ctt.partition(Y, (4,)), X.to(torch.complex64)),
        ArgumentTypeError,
        "no element type for torch",
    ),
    ((kernels.silu, ctt.partition(Y, (4,)), X.as_subclass(Wrapper)), ArgumentTypeError, "'x' is a Wrapper, which has"),
    ((kernels.silu, ctt.partition(Y, (4,)), Y), ArgumentError, "'y' and 'x' share memory"),
    ((kernels.silu, ctt.partition(X[:6], (4,)), X[2:]), ArgumentError, "'y' and 'x' share memory"),
    ((kernels.silu, ctt.partition(Y, (4, 4)), X), ArgumentError, "4, 4"),
    ((kernels.silu, ctt.partition(X.expand(3, 8), (1, 8)), Y), ArgumentError, "'y' is written, and indices of it name"),
    ((kernels.silu, ctt.partition(Y, (4,))), ArgumentError, r"silu takes 2 arguments \(y, x\), got 1"),
    ((kernels.axpy, ctt.partition(Y, (4,)), "a", X), ArgumentTypeError, "'a' must be a scalar of f32, got str"),
    ((print, Y), ArgumentTypeError, "expected a kernel, made by @cutile.entry, got builtin_function_or_method"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), WRONG, ids=[row[-1][:30] for row in WRONG])
@pytest.mark.parametrize("again", [False, True], ids=["at first", "after a launch"])
def test_what_cannot_be_launched_is_refused(arguments: Any, kind: Any, words: str, again: bool) -> None:
    x, y = X.clone(), Y.clone()
    if again:
        ctt.launch(kernels.silu, ctt.partition(torch.zeros(8), (4,)), torch.ones(8))
        ctt.launch(kernels.axpy, ctt.partition(torch.zeros(8), (4,)), 1.0, torch.ones(8))
    with pytest.raises(kind, match=words):
        ctt.launch(*arguments)
    torch.testing.assert_close((X, Y), (x, y))


def test_wrong_generics_and_grids_are_refused() -> None:
    with pytest.raises(GenericsError, match="NONE"):
        ctt.launch(kernels.scaled, ctt.partition(Y, (4,)), 1, X, NONE=1)
    with pytest.raises(LaunchError, match="grid"):
        ctt.launch(kernels.silu, ctt.partition(Y, (4,)), X, grid=(7, 1, 1))
    options: Any = {"num_warps": 4}
    with pytest.raises(ArgumentTypeError, match=r"silu: options: expected CompileOptions\(\.\.\.\)"):
        ctt.launch(kernels.silu, ctt.partition(Y, (4,)), X, options=options)
    with pytest.raises(
        ArgumentTypeError, match=r"for cutile\.torch\.launch: use that, or give api\.partition\(y, tile\)"
    ):
        kernels.silu(ctt.partition(Y, (4,)), X)  # pyright: ignore[reportArgumentType]  # on purpose


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of its compiler
@pytest.mark.slow
def test_a_launch_breaks_the_graph_that_it_stands_in() -> None:
    def doubled(x: Any) -> Any:
        y = torch.empty_like(x)
        ctt.launch(kernels.scaled, ctt.partition(y, (4,)), 1, x)
        return y + 1

    torch._dynamo.reset()
    for x in (X, X + 1):
        torch.testing.assert_close(torch.compile(doubled, backend="eager")(x), 2 * x + 1)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"launch in an operator, cutile\.torch\.register"):
        torch.compile(doubled, backend="eager", fullgraph=True)(X)


def test_gradients_that_are_not_recorded_are_no_matter() -> None:
    y = torch.zeros(8)
    with torch.no_grad():
        ctt.launch(kernels.silu, ctt.partition(y, (4,)), WANTS)
    torch.testing.assert_close(y, torch.nn.functional.silu(X))


def test_a_kernel_that_fails_says_so() -> None:
    y = torch.zeros(8)
    for _ in range(2):
        ctt.launch(kernels.checked, ctt.partition(y, (4,)), X)
        with pytest.raises(ct.KernelAssertionError, match="x must be positive"):
            ctt.launch(kernels.checked, ctt.partition(y, (4,)), -X)
    ctt.synchronize()
    assert y.tolist() == X.tolist()


FACTOR = 2


@ct.entry
def by_a_global(y: Mut, x: Tensor):
    """y = FACTOR * x."""
    y.store(ct.load_tile_like(x, y) * FACTOR)


def test_what_a_kernel_reads_from_python_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.zeros(8)
    for factor in (2, 5, 5, 2):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        ctt.launch(by_a_global, ctt.partition(y, (4,)), X)
        assert y.tolist() == [factor] * 8


def test_other_backends_and_instruments() -> None:
    class Log(Instrument):
        def after_complete(self, operation: ObservedOperation, error: BaseException | None) -> None:
            labels.append(operation.label)

    labels: list[str] = []
    for context in (ct.interpret(), ct.use_backend("reference"), instrumented(Log())):
        y = torch.zeros(8)
        with context:
            ctt.launch(kernels.scaled, ctt.partition(y, (4,)), 3, X, FACTOR=4)
        assert y.tolist() == [12.0] * 8
    assert labels == ["scaled"]


def test_layouts_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LAUNCHES >= 256
    monkeypatch.setattr("cutile.torch.launches.MAX_LAUNCHES", 3)
    for n in range(1, 9):
        ctt.launch(kernels.silu_backward, ctt.partition(torch.zeros(n), (4,)), torch.ones(n), torch.ones(n))
        assert 1 <= len(known(kernels.silu_backward)) <= 3


def test_threads() -> None:
    failures: list[Any] = []

    def work(number: int) -> None:
        x = torch.full((100,), float(number))
        for _ in range(30):
            y = torch.zeros(100)
            ctt.launch(kernels.axpy, ctt.partition(y, (32,)), 2.0, x)
            if not torch.equal(y, 2 * x):
                failures.append(y)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []


def test_a_grid_may_be_a_list() -> None:
    y = torch.zeros(6)
    for count in (1.0, 2.0):
        ctt.launch(kernels.axpy, ctt.partition(y, (2,)).prefix(), 1.0, torch.ones(6), grid=[2, 1, 1])
        assert y.tolist() == [count] * 4 + [0.0] * 2
