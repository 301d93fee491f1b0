"""Where control goes after a statement.

On to the next one, or out by `break`, `continue` or `return`.

The IR has structured control flow only. A jump that is decided when the kernel runs becomes a bool scalar, and the
statements after it become the body of an `if` on that scalar (`branches.guarded`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from cutile.ir.core import Value


class Exit(enum.Enum):
    """A way out of a list of statements.

    `BREAK` and `CONTINUE` are of the innermost loop of the function.
    """

    BREAK = "break"
    CONTINUE = "continue"
    RETURN = "return"
    ENDED = "ended"
    """A loop was left by `break`: its `else` does not run."""


Flag = Literal[True] | Value
"""Whether an exit was taken: for certain, or by a bool scalar."""


@dataclass
class Flow:
    """The state of control after a statement.

    Attributes:
        falls: whether some path goes on to the next statement.
        taken: the exits that some path took.
    """

    falls: bool = True
    taken: dict[Exit, Flag] = field(default_factory=dict[Exit, Flag])

    def leave(self, exit: Exit) -> None:
        """Every path takes `exit` from here."""
        self.falls = False
        self.taken = {exit: True}

    def rejoin(self, exit: Exit) -> bool:
        """Let the paths that took `exit` go on from here; whether there were any."""
        found = self.taken.pop(exit, None) is not None
        self.falls = self.falls or found
        return found

    def settle(self) -> None:
        """Where nothing falls through and there is one exit, every path took it."""
        if not self.falls and len(self.taken) == 1:
            self.taken = dict.fromkeys(self.taken, True)
