"""Calls on tokens.

A token is known when the kernel is compiled, and there is only one.

The order that it stands for holds anyway, since every access of a tile block stays in program order; what a token adds
is that the threads of a GPU's block wait for one another, and that is asked for by the accesses that are given one.
"""

from __future__ import annotations

from typing import Any

from cutile.frontend.frame import Frame
from cutile.frontend.registry import operation
from cutile.frontend.values import TOKEN, MutRef, PartitionRef, TensorRef, TokenRef, describe, items_of


def is_ordered(frame: Frame, token: Any, what: str) -> bool:
    """Whether an access was given a token."""
    if token is None:
        return False
    if not isinstance(token, TokenRef):
        frame.type_error(
            f"{what}: the token must be what another access returned, got {describe(token)}",
            remedy="Leave it out, or begin with ct.new_token_unordered().",
        )
    return True


@operation
def new_token_unordered(frame: Frame) -> Any:
    del frame
    return TOKEN


@operation
def join_tokens(frame: Frame, *tokens: Any) -> Any:
    given = items_of(tokens[0]) if len(tokens) == 1 and isinstance(tokens[0], tuple) else tokens
    for each in given:
        is_ordered(frame, each, "join_tokens")
    return TOKEN


def _view(frame: Frame, x: Any, what: str) -> None:
    if not isinstance(x, TensorRef | MutRef | PartitionRef):
        frame.type_error(
            f"{what}: expected a tensor, a partition or a Mut, got {describe(x)}",
            remedy="Tiles are values: only what is in memory has an order of accesses.",
        )


@operation
def get_tensor_token(frame: Frame, x: Any) -> Any:
    _view(frame, x, "get_tensor_token")
    return TOKEN


@operation
def get_partition_token(frame: Frame, x: Any) -> Any:
    _view(frame, x, "get_partition_token")
    return TOKEN


@operation
def set_tensor_token(frame: Frame, x: Any, token: Any) -> Any:
    _view(frame, x, "set_tensor_token")
    is_ordered(frame, token, "set_tensor_token")
