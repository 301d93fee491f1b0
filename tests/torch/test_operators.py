# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Operators that `cutile.torch.register` makes: autograd, compilation, transformations, what is refused. On the CPU."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import cutile.torch as ctt  # noqa: E402
from benchmarks.torch_model import Model, softmax  # noqa: E402
from cutile.errors import ArgumentError, ArgumentTypeError  # noqa: E402
from tests.torch import kernels  # noqa: E402
from tests.torch import operators as ops  # noqa: E402

BACKENDS = [
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")),
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of its compiler
@pytest.mark.slow
def test_opcheck_passes() -> None:
    wants = torch.randn(300, requires_grad=True)
    torch.library.opcheck(ops.silu, (wants,))
    torch.library.opcheck(ops.silu, (wants.detach(),))
    torch.library.opcheck(ops.silu_plain, (wants.detach(),))
    torch.library.opcheck(softmax, (torch.randn(6, 32, requires_grad=True),))
    torch.library.opcheck(ops.axpy_, (torch.randn(300), 2.0, torch.randn(300)))


def test_results_and_gradients() -> None:
    x = torch.randn(1000, requires_grad=True)
    y = ops.silu(x)
    torch.testing.assert_close(y, torch.nn.functional.silu(x))
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    (wanted,) = torch.autograd.grad(torch.nn.functional.silu(x).square().sum(), x)
    torch.testing.assert_close(gradient, wanted)
    with torch.no_grad():
        assert not ops.silu(x).requires_grad
    with torch.inference_mode():
        assert ops.silu(x).is_inference()
    assert torch.autograd.gradcheck(ops.silu, (torch.randn(30, dtype=torch.float64, requires_grad=True),))
    assert torch.autograd.gradcheck(softmax, (torch.randn(6, 8, dtype=torch.float64, requires_grad=True),))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_of_operators_is_one_graph(backend: str) -> None:
    torch._dynamo.reset()
    ours, theirs = Model(64, ours=True), Model(64, ours=False)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(64, 64)
    y = torch.compile(ours, fullgraph=True, backend=backend)(x)
    y.sum().backward()
    theirs(x).sum().backward()
    torch.testing.assert_close(y, theirs(x), rtol=1e-4, atol=1e-4)
    for mine, peer in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, peer.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_writing_in_place_is_seen() -> None:
    torch._dynamo.reset()
    x, y = torch.randn(100), torch.ones(100)
    version = y._version
    ops.axpy_(y, 2.0, x)
    torch.testing.assert_close(y, 2 * x + 1)
    assert y._version == version + 1

    saved = torch.ones(100, requires_grad=True).exp()  # exp saves its result
    with torch.no_grad():
        ops.axpy_(saved, 2.0, x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(y: Any, x: Any) -> Any:
        ops.axpy_(y, 2.0, x)
        ops.axpy_(y, 1.0, x)
        return y + 1

    z = torch.zeros(100)
    torch.testing.assert_close(twice(z, x), 3 * x + 1)
    torch.testing.assert_close(z, 3 * x)


def test_what_is_no_function_over_tensors_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="function must be a function over tensors, got the kernel silu"):
        ctt.register("cutile_tests::wrong(Tensor x) -> Tensor", kernels.silu, fake=torch.empty_like)
    with pytest.raises(ArgumentError, match=r'write "mylib::silu\(Tensor x\) -> Tensor"'):
        ctt.register("silu(Tensor x) -> Tensor", lambda x: x, fake=torch.empty_like)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # each slice is a call of its own
def test_functional_transforms() -> None:
    v = torch.randn(20)
    gradient = torch.func.grad(lambda x: ops.silu(x).sum())
    wanted = torch.func.grad(lambda x: torch.nn.functional.silu(x).sum())(v)
    torch.testing.assert_close(gradient(v), wanted)
    torch.testing.assert_close(torch.vmap(gradient)(torch.stack([-v, v]))[1], wanted)
    torch.testing.assert_close(torch.vmap(ops.silu_plain)(torch.stack([v, -v]))[1], ops.silu_plain(-v))


def test_what_stands_between_autograd_and_the_function_is_called() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x = torch.randn(10)
    for wants in (False, True):
        seen: list[Any] = []
        ops.silu(x.requires_grad_(wants))  # so that what was called before is known
        with Log():
            ops.silu(x)
        assert seen == [ops.silu]
    with torch._subclasses.FakeTensorMode() as mode:
        fake = ops.silu(mode.from_tensor(torch.randn(4)))
    assert type(fake).__name__ == "FakeTensor"
    imaginary = torch.view_as_complex(torch.randn(5, 2)).conj().imag
    assert imaginary.is_neg()
    torch.testing.assert_close(ops.silu(imaginary), torch.nn.functional.silu(imaginary))


def test_a_gradient_that_there_is_none_of_is_refused() -> None:
    x = torch.randn(10, requires_grad=True)
    remedy = r"cutile_tests::silu_plain: an argument requires a gradient, and the operator has none: .*detach"
    with pytest.raises(ArgumentError, match=remedy):
        ops.silu_plain(x)
    with torch.no_grad():
        ops.silu_plain(x)
    ops.silu_plain(x.detach())
    with pytest.raises(ArgumentError, match="cutile_tests::silu_backward"):  # a second derivative
        torch.autograd.grad(ops.silu(x).sum(), x, create_graph=True)


@pytest.mark.filterwarnings("ignore")
def test_a_gradient_that_there_is_none_of_is_refused_under_compile() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: ops.silu_plain(x), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="the operator has none"):
        compiled(torch.randn(10, requires_grad=True))


# -- signatures -------------------------------------------------------------------------------


def test_the_annotations_tell_the_schema_and_defaults_reach_the_backward() -> None:
    saved: list[Any] = []

    def setup(context: Any, inputs: Any, output: Any) -> None:
        saved.append(inputs[1:])
        context.factor = inputs[1]

    def scale(x: Any, factor: float = 3.0) -> Any:
        return x.detach() * factor

    scale.__annotations__ = {"x": torch.Tensor, "factor": float, "return": torch.Tensor}
    operator = ctt.register(
        "cutile_tests::scale",
        scale,
        fake=lambda x, factor=3.0: torch.empty_like(x),
        backward=lambda context, dy: (dy * context.factor, None),
        setup_context=setup,
    )
    x = torch.ones(3, requires_grad=True)
    for arguments, named, factor in (((x,), {}, 3.0), ((x, 2.0), {}, 2.0), ((x,), {"factor": 5.0}, 5.0)):
        (gradient,) = torch.autograd.grad(operator(*arguments, **named).sum(), x)
        assert gradient.tolist() == [factor] * 3
    assert saved == [(3.0,), (2.0,), (5.0,)]


def test_lists_of_tensors_have_gradients() -> None:
    operator = ctt.register(
        "cutile_tests::total(Tensor[] xs) -> Tensor",
        lambda xs: sum(x.detach() for x in xs) + 0,
        fake=lambda xs: torch.empty_like(xs[0]),
        backward=lambda context, dy: [dy] * 2,
    )
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(operator([x, y]).sum(), (x, y))[1], torch.ones(3))
    assert not operator([x.detach()]).requires_grad


def test_the_same_function_may_be_registered_again() -> None:
    def define(number: float, name: str = "again") -> Any:
        def again(x: Any) -> Any:
            return x.new_full(x.shape, number)

        return ctt.register(f"cutile_tests::{name}(Tensor x) -> Tensor", again, fake=torch.empty_like)

    first = define(1.0)
    assert define(2.0) is first  # as where a notebook's cell runs again
    assert first(torch.zeros(2)).tolist() == [2.0, 2.0]


def other(x: Any) -> Any:
    return x.clone()


WRONG = [
    (("silu(Tensor x) -> Tensor", other), {}, ArgumentError, "does not begin with a name such as mylib::silu"),
    (("cutile_tests::silu(Tensor x) -> Tensor", other), {}, ArgumentError, "is there already: .*choose another name"),
    (("aten::relu(Tensor x) -> Tensor", other), {}, ArgumentError, "aten::relu is there already, and was not"),
    (("cutile_tests::bad(Tensr x) -> Tensor", other), {}, ArgumentError, "is no schema: "),
    (("cutile_tests::untold", lambda x: x), {}, ArgumentError, "tell no schema: .*annotate it"),
    (("cutile_tests::x(Tensor x) -> Tensor", 3), {}, ArgumentTypeError, "function must be a function, got int"),
    (("cutile_tests::x(Tensor x) -> Tensor", other), {"fake": None}, ArgumentTypeError, "fake must be a function"),
    (
        ("cutile_tests::x(Tensor x) -> Tensor", other),
        {"setup_context": other},
        ArgumentError,
        "setup_context saves for a backward, and there is none",
    ),
    (
        ("cutile_tests::written(Tensor(a!) x) -> ()", other),
        {"backward": other},
        ArgumentError,
        "writes its argument 'x', and has a backward",
    ),
]


@pytest.mark.parametrize(("arguments", "named", "kind", "words"), WRONG, ids=[row[-1][:30] for row in WRONG])
def test_what_is_no_operator_is_refused(arguments: Any, named: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        ctt.register(*arguments, **{"fake": other, **named})


def test_a_refused_name_can_be_used_afterwards() -> None:
    with pytest.raises(ArgumentError):
        ctt.register("cutile_tests::later(Tensor(a!) x) -> ()", other, fake=other, backward=other)
    ctt.register("cutile_tests::later(Tensor x) -> Tensor", other, fake=torch.empty_like)
