# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (PyTorch is not among what the tests install)
"""A model with our operators or PyTorch's: the tests compare its results, the benchmark times it."""

from __future__ import annotations

import torch

import cutile as ct
import cutile.torch as ctt
from cutile import Mut, Tensor, f32, f64
from kernels.gemm import gemm


def _wide(tile, dtype):
    """A tile in the dtype of the arithmetic: float32 at least, so that gradients of float64 can be checked."""
    return tile if dtype == f64 else ct.convert_tile(tile, f32)


@ct.entry
def softmax_kernel(y: Mut, x: Tensor):
    """The softmax of each row; a tile has whole rows."""
    t = _wide(ct.load_tile_like(x, y), x.dtype)
    e = ct.exp(t - ct.reduce_max(t, 1)[:, None])
    y.store(ct.convert_tile(e / ct.reduce_sum(e, 1)[:, None], y.dtype))


@ct.entry
def softmax_backward_kernel(dx: Mut, dy: Tensor, y: Tensor):
    """dx = y * (dy - the sum of y * dy over the row)."""
    p, g = _wide(ct.load_tile_like(y, dx), y.dtype), _wide(ct.load_tile_like(dy, dx), y.dtype)
    dx.store(ct.convert_tile(p * (g - ct.reduce_sum(p * g, 1)[:, None]), dx.dtype))


@ctt.register("cutile_model::softmax_backward(Tensor dy, Tensor y) -> Tensor", fake=lambda dy, y: torch.empty_like(y))
def softmax_backward(dy, y):
    dx = torch.empty_like(y)
    ctt.launch(softmax_backward_kernel, ctt.partition(dx, (1, y.shape[1])), dy.contiguous(), y)
    return dx


@ctt.register(
    "cutile_model::softmax(Tensor x) -> Tensor",
    fake=torch.empty_like,
    backward=lambda context, dy: softmax_backward(dy, *context.saved_tensors),
    setup_context=lambda context, inputs, output: context.save_for_backward(output),
)
def softmax(x):
    y = torch.empty_like(x)
    ctt.launch(softmax_kernel, ctt.partition(y, (1, x.shape[1])), x)
    return y


def _matmul_backward(context, dz):
    x, y = context.saved_tensors
    return matmul(dz, y.t()), matmul(x.t(), dz)


@ctt.register(
    "cutile_model::matmul(Tensor x, Tensor y) -> Tensor",
    fake=lambda x, y: x.new_empty((x.shape[0], y.shape[1])),
    backward=_matmul_backward,
    setup_context=lambda context, inputs, output: context.save_for_backward(*inputs),
)
def matmul(x, y):
    z = x.new_empty((x.shape[0], y.shape[1]))
    ctt.launch(gemm, ctt.partition(z, (128, 128)), x, y)
    return z


class Model(torch.nn.Module):
    """A product, a softmax and a product, with our operators or PyTorch's, and operations between them that fuse."""

    def __init__(self, width: int, *, ours: bool) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(width, width) / width**0.5)
        self.second = torch.nn.Parameter(torch.randn(width, width) / width**0.5)
        self.ours = ours

    def forward(self, x):
        multiply = matmul if self.ours else torch.matmul
        normalize = softmax if self.ours else (lambda t: torch.softmax(t, 1))
        h = torch.nn.functional.gelu(multiply(x, self.first))
        return multiply(normalize(h * 2.0), self.second) + 1.0
