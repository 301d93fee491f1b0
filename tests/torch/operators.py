# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The operators that these tests call, on the CPU and on a GPU. Needs PyTorch."""

import torch

import cutile.torch as ctt
from tests.torch import kernels


@ctt.register("cutile_tests::silu_backward(Tensor dy, Tensor x) -> Tensor", fake=lambda dy, x: torch.empty_like(x))
def silu_backward(dy, x):
    dx = torch.empty_like(x)
    ctt.launch(kernels.silu_backward, ctt.partition(dx, (256,)), dy, x)
    return dx


@ctt.register(
    "cutile_tests::silu(Tensor x) -> Tensor",
    fake=torch.empty_like,
    backward=lambda context, dy: silu_backward(dy, *context.saved_tensors),
    setup_context=lambda context, inputs, output: context.save_for_backward(*inputs),
)
def silu(x):
    y = torch.empty_like(x)
    ctt.launch(kernels.silu, ctt.partition(y, (256,)), x)
    return y


@ctt.register("cutile_tests::silu_plain(Tensor x) -> Tensor", fake=torch.empty_like)
def silu_plain(x):
    """The same without a gradient."""
    y = torch.empty_like(x)
    ctt.launch(kernels.silu, ctt.partition(y, (256,)), x)
    return y


@ctt.register("cutile_tests::axpy_(Tensor(a!) y, float a, Tensor x) -> ()", fake=lambda y, a, x: None)
def axpy_(y, a, x):
    """y = a * x + y, in place."""
    ctt.launch(kernels.axpy, ctt.partition(y, (256,)), a, x)


@ctt.register("cutile_tests::softmax_backward(Tensor dy, Tensor y) -> Tensor", fake=lambda dy, y: torch.empty_like(y))
def softmax_backward(dy, y):
    dx = torch.empty_like(y)
    ctt.launch(kernels.softmax_backward, ctt.partition(dx, (4, y.shape[1])), dy, y)
    return dx


@ctt.register(
    "cutile_tests::softmax(Tensor x) -> Tensor",
    fake=torch.empty_like,
    backward=lambda context, dy: softmax_backward(dy, *context.saved_tensors),
    setup_context=lambda context, inputs, output: context.save_for_backward(output),
)
def softmax(x):
    y = torch.empty_like(x)
    ctt.launch(kernels.softmax, ctt.partition(y, (4, x.shape[1])), x)
    return y


def _matmul_backward(context, dz):
    x, y = context.saved_tensors
    return matmul(dz, y.t()), matmul(x.t(), dz)


@ctt.register(
    "cutile_tests::matmul(Tensor x, Tensor y) -> Tensor",
    fake=lambda x, y: x.new_empty((x.shape[0], y.shape[1])),
    backward=_matmul_backward,
    setup_context=lambda context, inputs, output: context.save_for_backward(*inputs),
)
def matmul(x, y):
    z = x.new_empty((x.shape[0], y.shape[1]))
    ctt.launch(kernels.matmul, ctt.partition(z, (64, 64)), x, y)
    return z


class Model(torch.nn.Module):
    """Attention-like: a product, a softmax, a product, and an elementwise end; of our operators or of PyTorch's."""

    def __init__(self, width: int, ours: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width) / width**0.5)
        self.ours = ours

    def forward(self, x):
        if self.ours:
            return silu((matmul(softmax(matmul(x, self.weight)), x.t().contiguous())).reshape(-1))
        return torch.nn.functional.silu((torch.softmax(x @ self.weight, 1) @ x.t()).reshape(-1))
