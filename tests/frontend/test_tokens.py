"""Tokens: what takes them, and that they pass through control flow as they are."""

import pytest

from cutile.errors import KernelTypeError
from cutile.ir.core import Function
from tests.support.programs import mut, program, scalar, tensor


def built(body: str) -> Function:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    text = f"def k(y: Mut, x: Tensor, n: i32):\n{lines}    y.store(y.load())\n"
    return program(text, {"y": mut(8), "x": tensor(1), "n": scalar()})


def test_tokens_cost_nothing_and_pass_through_control_flow() -> None:
    function = built(
        "token = ct.join_tokens(ct.new_token_unordered(), ct.get_tensor_token(x))\n"
        "for i in range(3):\n"
        "    token = ct.join_tokens((token, ct.get_partition_token(x.partition((4,)))))\n"
        "if n > 0:\n"
        "    token = ct.get_tensor_token(y)\n"
        "ct.set_tensor_token(y, token)\n"
    )
    assert {op.name for op in function.walk()} <= {"constant", "for", "if", "gt", "load_mut", "store_mut", "yield"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("ct.join_tokens(x)", "the token must be what another access returned, got tensor"),
        ("ct.get_tensor_token(3)", "expected a tensor, a partition or a Mut, got int 3"),
    ],
)
def test_what_is_no_token_is_refused(call: str, message: str) -> None:
    with pytest.raises(KernelTypeError, match=message):
        built(call)
