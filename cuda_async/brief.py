"""Errors of the project as IPython shows them: the user's lines and the message.

They have at most 15 lines in all. IPython asks an exception for `_render_traceback_`. Everywhere else tracebacks are
complete, except of errors that show the place themselves (`errors.outer_frames`). In a notebook
`traceback.print_exception(error)` shows the complete traceback.
"""

from __future__ import annotations

import linecache
import textwrap
import traceback

from cuda_async.site import format_site, is_internal

__all__ = ("MAX_LINES", "brief")

MAX_LINES = 15
_MAX_FRAMES = 3  # frames of the user's code that are shown, the innermost ones
_TAIL = 2  # last lines that are shown of a message that is cut: the remedy, and the operations that were submitted
_WIDTH = 100  # characters of a line; the narrower of the usual notebook pages shows some 105


def brief(error: BaseException) -> list[str]:
    """The lines that IPython shows of an error: at most `MAX_LINES`."""
    message = f"{type(error).__name__}: {error}".splitlines()
    message += [line for note in getattr(error, "__notes__", ()) for line in str(note).splitlines()]
    message = [part for line in message for part in _wrapped(line)]
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _is_hidden(frame)]
    lines: list[str] = []
    for frame, line in frames[-_MAX_FRAMES:]:
        file = frame.f_code.co_filename
        text = linecache.getline(file, line, frame.f_globals).strip()
        site = format_site((file, line))
        place = [site, *([f"    {text}"] if text else [])]
        # Errors in kernels show the place themselves: a line `site, ...`, and the source with a caret.
        shown = any(line.strip().startswith(f"{site},") for line in message)
        # A place comes twice in a row where a line calls a lambda that stands in the same line.
        if not shown and lines[-len(place) :] != place:
            lines += place
    left = MAX_LINES - len(lines)
    if len(message) > left:
        # The remedy stands at the end. A message of several errors has several remedies: its first lines are shown.
        last = 0 if len(getattr(error, "errors", ())) > 1 else _TAIL
        cut = f"... and {len(message) - left + 1} lines more: print(error) has them"
        message = [*message[: left - 1 - last], cut, *message[len(message) - last :]]
    return [*lines, *message]


def _wrapped(line: str) -> list[str]:
    """A line of prose, broken between words.

    A page would break a long line within a word. Indented lines are code, and stay as they are.
    """
    if len(line) <= _WIDTH or line.startswith(" "):
        return [line]
    return textwrap.wrap(line, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _is_hidden(frame: object) -> bool:
    """Whether a frame is this project's, the notebook's or the event loop's."""
    name = str(getattr(frame, "f_globals", {}).get("__name__", ""))
    return is_internal(frame) or name.partition(".")[0] in ("IPython", "ipykernel", "asyncio", "contextlib")  # type: ignore[arg-type]
