"""What the checker of interpreted launches warns of.

Apart from the checker, since every process that imports cutile reads it.
"""

__all__ = ("PaddingWarning",)


class PaddingWarning(UserWarning):
    """Elements past a tensor's edge change the result of a reduction.

    Once for each line of an interpreted launch. Leave it out with `interpret(check=False)`, or with
    `warnings.filterwarnings("ignore", category=cutile.PaddingWarning)`.
    """
