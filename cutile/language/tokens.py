"""Tokens: in which order a tile block's accesses to memory happen, as values that accesses take and return.

Accesses to one tensor, partition or `Mut` happen in program order without any. Accesses through raw pointers are in
order where a token leads from one to the next:

    old, token = ct.load_ptr_tko(p)
    token = ct.store_ptr_tko(p, old + 1, token=token)
    new, _ = ct.load_ptr_tko(p, token=token)        # sees the store, whichever thread made it
"""

from __future__ import annotations

from typing import Any

from cutile.language.mark import operation
from cutile.tile import outside_kernel


class Token:
    """What an access returns and a later one takes to happen after it."""


@operation
def new_token_unordered() -> Token:
    """A token that nothing comes before."""
    outside_kernel("new_token_unordered")


@operation
def join_tokens(*tokens: Token | tuple[Token, ...]) -> Token:
    """A token that comes after all of these, given one by one or as a tuple."""
    outside_kernel("join_tokens")


@operation
def get_tensor_token(x: Any) -> Token:
    """The token of the last access through this tensor or `Mut`."""
    outside_kernel("get_tensor_token")


@operation
def set_tensor_token(x: Any, token: Token) -> None:
    """Let the next access through this tensor or `Mut` come after `token`."""
    outside_kernel("set_tensor_token")


@operation
def get_partition_token(x: Any) -> Token:
    """The token of the last access through this partition."""
    outside_kernel("get_partition_token")
