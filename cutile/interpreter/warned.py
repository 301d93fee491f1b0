"""What the checker of interpreted launches warns of. Apart, since every process that imports cutile reads it."""

__all__ = ("PaddingWarning",)


class PaddingWarning(UserWarning):
    """Elements past a tensor's edge change the result of a reduction, in an interpreted launch.

    Once for each line and launch. Leave it out with `interpret(check=False)`, or with
    `warnings.filterwarnings("ignore", category=cutile.PaddingWarning)`.
    """
