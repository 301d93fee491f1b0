"""Tokens: the order of a tile block's memory accesses, as values.

Accesses take and return tokens.

Accesses to one tensor, partition or `Mut` happen in program order without tokens. Accesses by the `_tko` functions
through raw pointers are in order only where a token leads from one to the next:

    old, token = ct.load_ptr_tko(p)
    token = ct.store_ptr_tko(p, old + 1, token=token)
    new, _ = ct.load_ptr_tko(p, token=token)        # sees the store, whichever thread made it
"""

from __future__ import annotations

from typing import Any

from cutile.language.declare import operation
from cutile.language.facts import Subscriptable


class Token(Subscriptable):
    """Stands for accesses to memory; an access that takes it happens after them."""


@operation
def new_token_unordered() -> Token:
    """A token that stands for no access.

    Returns:
        The token.

    Example:
        >>> run(lambda x: x + ct.load_ptr_tko(x_at, token=ct.new_token_unordered())[0], [1.0, 2.0])
        [2.0, 3.0]
    """
    ...


@operation
def join_tokens(*tokens: Token | tuple[Token, ...]) -> Token:
    """A token that stands for the accesses of several tokens.

    Args:
        tokens: tokens, or tuples of them.

    Returns:
        A token.

    Raises:
        KernelTypeError: an argument is no token.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def swap(p: ct.Ptr[ct.f32]):
        ...     first, before = ct.load_ptr_tko(p)
        ...     last, after = ct.load_ptr_tko(p + 1)
        ...     both = ct.join_tokens(before, after)          # the stores come after both loads
        ...     ct.store_ptr_tko(p, last, token=both)
        ...     ct.store_ptr_tko(p + 1, first, token=both)
        >>> x = ct.api.arange(2, ct.f32).sync()
        >>> _ = swap(x.device_pointer()).grid((1,)).sync()
        >>> x.to_numpy().sync().tolist()
        [1.0, 0.0]
    """
    ...


@operation
def get_tensor_token(x: Any) -> Token:
    """The token of the last access through this tensor or `Mut`.

    Args:
        x: a tensor or a `Mut`.

    Returns:
        A token.

    Raises:
        KernelTypeError: `x` is no tensor.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def through_memory(y: ct.Mut, p: ct.Ptr[ct.f32]):
        ...     y.store(y.load() + 1.0)
        ...     seen, _ = ct.load_ptr_tko(p, token=ct.get_tensor_token(y))        # of y: after the store
        ...     y.store(ct.broadcast(10.0 * seen, y.shape))
        >>> y = ct.api.ones((2,)).sync()
        >>> _ = through_memory(y.mut.partition((2,)), y.device_pointer()).sync()
        >>> y.to_numpy().sync().tolist()
        [20.0, 20.0]
    """
    ...


@operation
def set_tensor_token(x: Any, token: Token) -> None:
    """Let the next access through this tensor or `Mut` come after `token`.

    Args:
        x: a tensor or a `Mut`.
        token: a token; the next access comes after the accesses that it stands for.

    Raises:
        KernelTypeError: `x` is no tensor, or `token` is no token.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def through_memory(y: ct.Mut, p: ct.Ptr[ct.f32]):
        ...     ct.set_tensor_token(y, ct.store_ptr_tko(p, 5.0))                  # of y: the load sees the store
        ...     y.store(2.0 * y.load())
        >>> y = ct.api.ones((2,)).sync()
        >>> _ = through_memory(y.mut.partition((2,)), y.device_pointer()).sync()
        >>> y.to_numpy().sync().tolist()
        [10.0, 2.0]
    """
    ...


@operation
def get_partition_token(x: Any) -> Token:
    """The token of the last access through this partition.

    Args:
        x: a partition.

    Returns:
        A token.

    Raises:
        KernelTypeError: `x` is no partition.

    Example:
        >>> @ct.entry(unsafe=True)
        ... def through_memory(y: ct.Mut, p: ct.Ptr[ct.f32]):
        ...     part = y.partition_mut((1,))
        ...     part.store(ct.constant(7.0, (1,), ct.f32), 0)
        ...     seen, _ = ct.load_ptr_tko(p, token=ct.get_partition_token(part))  # of y: after the store
        ...     part.store(ct.broadcast(seen, (1,)), 1)
        >>> y = ct.api.ones((2,)).sync()
        >>> _ = through_memory(y.mut.partition((2,)), y.device_pointer()).sync()
        >>> y.to_numpy().sync().tolist()
        [7.0, 7.0]
    """
    ...


__all__ = (
    "Token",
    "get_partition_token",
    "get_tensor_token",
    "join_tokens",
    "new_token_unordered",
    "set_tensor_token",
)
