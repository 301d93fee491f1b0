"""Prints and assertions.

Python's own `print` and `assert` do the same in a kernel. The functions below are their names in cuTile Rust.

    print("block", i, "sum", total)                   values, separated by spaces
    print(f"row {i}: {tile:.3f}")                     the usual formats; tiles in nested brackets
    assert n % 32 == 0, f"n must be a multiple of 32, got {n}"

The tile blocks of a kernel that prints are started in linear order. Floats print with six digits unless a format says
otherwise. On a GPU the text appears when the host waits for the stream. It goes to the process's standard output, not
through Python's `sys.stdout`, and at most a megabyte of it is kept. On every target a failed assertion raises
`KernelAssertionError` where the host waits for the launch. The device stays usable. The error tells the first failure
that was noted, with the integers that the condition compares. Its message may show up to four scalars more; they are
computed even where the condition holds.
"""

from __future__ import annotations

from cutile.language.declare import operation
from cutile.language.token import Token
from cutile.tile import Tile


@operation
def cuda_tile_print(format: str, *values: Tile | float) -> None:
    """Print `format`, with each `{}` replaced by the next value.

    `{:.3f}` says the value's format. No newline is added.

    Args:
        format: a constant text.
        values: tiles, scalars or numbers, one for each `{}`.

    Raises:
        KernelTypeError: the text is not constant, or has more or fewer `{}` than there are values.

    Example:
        >>> @ct.entry
        ... def hello(y: ct.Mut):
        ...     i, j, k = ct.get_tile_block_id()
        ...     ct.cuda_tile_print("I am tile <{}, {}, {}>\\n", i, j, k)
        >>> y = ct.api.zeros((1,)).sync()
        >>> _ = hello(y.partition((1,))).sync()
        I am tile <0, 0, 0>
    """
    ...


@operation
def print_tko(format: str, *values: Tile | float, token: Token | None = None) -> Token:
    """`cuda_tile_print`, after the accesses that `token` stands for; a token.

    Args:
        format: a constant text.
        values: tiles, scalars or numbers, one for each `{}`.
        token: the print comes after the accesses for which the token stands.

    Returns:
        A token.

    Raises:
        KernelTypeError: the text is not constant, or has more or fewer `{}` than there are values.

    Example:
        >>> @ct.entry
        ... def tell(y: ct.Mut):
        ...     ct.print_tko("{}: {:.2f}\\n", ct.get_tile_block_id()[0], y.load(), token=ct.get_tensor_token(y))
        >>> _ = tell(ct.api.ones((2,)).sync().partition((2,))).sync()
        0: [1.00, 1.00]
    """
    ...


@operation
def cuda_tile_assert(condition: Tile | bool, message: str = "") -> None:
    """`assert condition, message`; every element of a tile must be true.

    Args:
        condition: a bool, a scalar or a tile. A number counts as true if it is not 0.
        message: a text, or an f-string with up to four scalars.

    Raises:
        KernelAssertionError: the condition was false. It is raised where the host waits for the kernel.
        KernelTypeError: the message shows more scalars, or a tile.

    Example:
        >>> @ct.entry
        ... def root(y: ct.Mut):
        ...     x = y.load()
        ...     ct.cuda_tile_assert(x >= 0.0, f"no root of {ct.reduce_min(x, 0):.1f}")
        ...     y.store(ct.sqrt(x))
        >>> y = ct.api.full(-1.0, (2,)).sync()
        >>> root(y.mut.partition((2,))).sync()
        Traceback (most recent call last):
        cutile.errors.KernelAssertionError: root: no root of -1.0...
    """
    ...


__all__ = (
    "cuda_tile_assert",
    "cuda_tile_print",
    "print_tko",
)
