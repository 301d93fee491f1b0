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
