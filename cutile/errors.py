"""Every exception and warning of cutile, and how errors show the user's line.

CutileError
  KernelSyntaxError (SyntaxError)     the kernel uses Python that cutile does not compile
  KernelNameError (NameError)         a name in the kernel means nothing
  KernelTypeError (TypeError)         types, dtypes or shapes in the kernel do not fit
  CheckError (RuntimeError)           a fault of an interpreted kernel that a device would not report
    RaceError                         two tile blocks use an element, and one writes it
    UninitialisedReadError            an element is read that nothing has written
    OutOfBoundsError (IndexError)     an access lies outside of a tensor
    IdentityError (ValueError)        a reduction or scan begins with a number that changes elements
  ArgumentError (ValueError)          a launch argument has the wrong rank, extent, partition or value
    ArgumentTypeError (TypeError)     a launch argument has the wrong type or dtype
    ArgumentIndexError (IndexError)   an index is out of bounds, or there are more indices than axes
  LaunchError (ValueError)            the grid or the launch's parts contradict one another
  GenericsError (ValueError)          generics are too many, or contradict the arguments
    MissingGenericsError              nothing tells the value of a generic
  KernelAssertionError (AssertionError)  an `assert` in a kernel did not hold
  CompilationError (RuntimeError)     Numba, NVVM or the linker refused generated code
  IRError (ValueError)                IR that breaks its own rules: a fault in cutile itself
  UnsupportedTargetError (ValueError) no backend, or an architecture that no backend knows
  TuningError (RuntimeError)          a search for the fastest configuration came to nothing
    ForeignLogError (ValueError)      a log is another search's, or no log
    StaleRecordError (ValueError)     a record is of another kernel, other arguments or another device

UserWarning
  PaddingWarning                      elements past a tensor's edge change the result of an interpreted reduction
  SpillWarning                        the tiles of a compiled kernel do not fit into registers
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

# Re-exported: a message shows objects and guesses names alike in both packages.
from cuda_async.errors import as_text as as_text
from cuda_async.errors import closest as closest
from cuda_async.errors import hide_own_frames as hide_own_frames

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep


@dataclass(frozen=True)
class Location:
    """A place in the user's source: a line from 1, columns from 0, the line's text."""

    file: str
    line: int
    column: int
    end_column: int
    text: str
    function: str = ""
    caller: Location | None = None  # where the function that holds this place was inlined

    def __str__(self) -> str:
        cell = cell_of(self.file)
        return f"{cell}, line {self.line}" if cell else f"{self.file}:{self.line}"

    def show(self) -> str:
        """The line with a caret under the expression, and the chain of inlined calls."""
        text = self.text.lstrip()
        indent = len(self.text) - len(text)
        start = max(self.column - indent, 0)
        width = max(min(self.end_column - indent, len(text)) - start, 1)
        text, start, width = _cut(text, start, width)
        file = cell_of(self.file) or f'File "{self.file}"'
        lines = [f"  {file}, line {self.line}" + (f", in {self.function}" if self.function else "")]
        lines += [f"    {text}", "    " + " " * start + "^" * width]
        if self.caller is not None:
            lines += ["  inlined here:", self.caller.show()]
        return "\n".join(lines)

    def of_user(self) -> Location:
        """The place without this package's own functions, where user code has called them."""
        caller = None if self.caller is None else self.caller.of_user()
        if caller is not None and self.file.startswith(_PACKAGE) and not caller.file.startswith(_PACKAGE):
            return caller
        return self if caller is self.caller else dataclasses.replace(self, caller=caller)


_MAX_LINE = 200  # characters of a source line; of a longer line the part around the place is shown
_MARGIN = 40  # characters before and after the place in a line that is cut
_DOTS = " ... "


def _cut(text: str, start: int, width: int) -> tuple[str, int, int]:
    """A long line cut to the part around a place; the place's start and width in it.

    >>> _cut("a" * 300 + "place" + "b" * 300, 300, 5)[0] == " ... " + "a" * 40 + "place" + "b" * 40 + " ... "
    True
    """
    if len(text) <= _MAX_LINE:
        return text, start, width
    end = start + width
    place = text[start:end]
    room = _MAX_LINE - 2 * _MARGIN
    if width > room:  # of a long place, only the two ends
        half = (room - len(_DOTS)) // 2
        place = place[:half] + _DOTS + place[-half:]
    before = text[max(start - _MARGIN, 0) : start]
    before = before if start <= _MARGIN else _DOTS + before
    behind = text[end : end + _MARGIN] + (_DOTS if end + _MARGIN < len(text) else "")
    return before + place + behind, len(before), len(place)


def cell_of(file: str) -> str:
    """IPython's name of the cell with this file name: `Cell In[9]`; "" for a file."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    words = shell.compile.format_code_name(file) if hasattr(shell, "compile") else None  # ("Cell", "In[9]"), or None
    return " ".join(words) if words else ""


class CutileError(Exception):
    """The root of cutile's exceptions."""


class KernelError(CutileError):
    """An error in a kernel's source: a message, the place, and a remedy.

    Attributes:
        message: what is wrong.
        location: the place in the source.
        remedy: what to do.
        places: other places that the message names, each with a title.
        errors: all errors of the kernel that were found, or this one alone.
        shows_place: the text shows the place: such an error is raised without the frames in between.
    """

    shows_place = True

    def __init__(
        self,
        message: str,
        location: Location | None = None,
        remedy: str = "",
        places: tuple[tuple[str, Location], ...] = (),
    ) -> None:
        location = None if location is None else location.of_user()
        self.message = message
        self.location = location
        self.remedy = remedy
        self.places = places
        self.errors: tuple[KernelError, ...] = (self,)
        parts = [message]
        if location is not None:
            parts.append(location.show())
        for title, place in places:
            parts += [f"{title}:", place.show()]
        if remedy:
            parts.append(remedy)
        super().__init__("\n".join(parts))

    @staticmethod
    def together(kernel: str, errors: tuple[KernelError, ...]) -> KernelError:
        """One error that lists several; of their class if they share it."""
        if len(errors) == 1:
            return errors[0]
        classes = {type(error) for error in errors}
        common = classes.pop() if len(classes) == 1 else KernelError
        texts = [f"{number}. {error}" for number, error in enumerate(errors, 1)]
        error = common("\n\n".join([f"kernel {kernel!r} has {len(errors)} errors", *texts]))
        error.errors = errors
        return error

    def __str__(self) -> str:  # the text alone: `SyntaxError` would add its own file and line
        return str(self.args[0]) if self.args else ""


class KernelSyntaxError(KernelError, SyntaxError):
    """The kernel uses Python that cutile does not compile."""


class KernelNameError(KernelError, NameError):
    """A name in the kernel means nothing there."""


class KernelTypeError(KernelError, TypeError):
    """Types, dtypes or shapes in the kernel do not fit together."""


class CheckError(KernelError, RuntimeError):
    """A fault of an interpreted kernel that a device would not report; with the line."""


class RaceError(CheckError):
    """Two tile blocks use an element and one writes it, with nothing to order them."""


class UninitialisedReadError(CheckError):
    """An element is read that nothing has written."""


class OutOfBoundsError(CheckError, IndexError):
    """An access lies outside of a tensor."""


class IdentityError(CheckError, ValueError):
    """A reduction or scan begins with a number that changes elements."""


class ArgumentError(CutileError, ValueError):
    """A launch argument has the wrong rank, extent, partition shape or value."""


class ArgumentTypeError(ArgumentError, TypeError):
    """A launch argument has the wrong type or dtype."""


class ArgumentIndexError(ArgumentError, IndexError):
    """An index is out of bounds, or there are more indices than axes."""


class LaunchError(CutileError, ValueError):
    """The grid is missing or empty, or parts of the launch contradict one another."""


class GenericsError(CutileError, ValueError):
    """Generics are missing, too many, or contradict the arguments.

    Attributes:
        extent: the name that a call gives and the kernel lacks, where a partition may name an extent so; else empty.
    """

    extent: str = ""


class MissingGenericsError(GenericsError):
    """Neither the caller, nor an argument, nor a default tells the value of a generic."""


class KernelAssertionError(CutileError, AssertionError):
    """An `assert` in a kernel did not hold.

    Says the kernel, the line, the message and the tile block.
    """


class CompilationError(CutileError, RuntimeError):
    """Numba, NVVM or the linker refused generated code."""


class IRError(CutileError, ValueError):
    """IR that breaks its own rules.

    A fault in cutile itself: please report it with the dump.
    """


class UnsupportedTargetError(CutileError, ValueError):
    """No backend serves this, or the architecture is unknown."""


class TuningError(CutileError, RuntimeError):
    """A search for the fastest configuration came to nothing.

    Says why each one could not be used.
    """


class ForeignLogError(TuningError, ValueError):
    """A log belongs to another search, or is no log. Nothing is written to it."""


class StaleRecordError(TuningError, ValueError):
    """A record of a search is of another kernel, other arguments or another device."""


class PaddingWarning(UserWarning):
    """Elements past a tensor's edge change the result of a reduction.

    Once for each line of an interpreted launch. Leave it out with `interpret(check=False)`, or with
    `warnings.filterwarnings("ignore", category=cutile.PaddingWarning)`.
    """


class SpillWarning(UserWarning):
    """A compiled kernel spills: values of its tiles wait in memory, which is slow.

    Once for each specialisation of a kernel, at its line, with the bytes of a thread that spill and what helps. Leave
    it out with `warnings.filterwarnings("ignore", category=cutile.SpillWarning)`, or make it an error with "error".
    """


F = TypeVar("F", bound=Callable[..., Any])


def own_keywords(remedies: Mapping[str, str], more: str = "") -> Callable[[F], F]:
    """Have a function refuse keywords that it does not take, with remedies for some.

    Raises ArgumentTypeError when the function is called with such a keyword.

    Args:
        remedies: by keyword, the end of the error's text.
        more: the same for more arguments than the function takes; empty leaves that error to Python.

    Example:
        >>> @own_keywords({"size": "it is called extent"})
        ... def cut(extent: int = 1) -> int:
        ...     return extent
        >>> cut(extent=2)
        2
        >>> cut(size=2)
        Traceback (most recent call last):
        ...
        cutile.errors.ArgumentTypeError: cut takes no 'size': it is called extent
    """

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*args: Any, **named: Any) -> Any:
            for name in named:
                if name not in parameters:
                    guesses = closest(name, parameters)
                    names = [parameter for parameter in parameters if parameter != "self"]
                    remedy = f"did you mean {guesses[0]!r}?" if guesses else f"it takes {', '.join(names)}"
                    raise ArgumentTypeError(f"{function.__name__} takes no {name!r}: {remedies.get(name, remedy)}")
            if more and len(args) > len(parameters):
                names = ", ".join(parameters)
                raise ArgumentTypeError(f"{function.__name__} takes ({names}), got {len(args)} arguments: {more}")
            return function(*args, **named)

        return cast("F", checked)

    return decorate
