"""Debug mode: one checker over all devices warns of each unordered use.

`CUDA_ASYNC_CHECK=1` turns it on. A warning names both uses and their lines. Either an operation enqueued work on memory
without `storage.use(...)` before it, or memory was shared with another library without ordering the work of both. If
neither a user's operation nor another library is involved, it is a bug of this package.
"""

from __future__ import annotations

import warnings

from cuda_async.config import config
from cuda_async.driver.checked import CheckedDriver, Ledger, Race
from cuda_async.driver.interface import Driver

__all__ = ("UnorderedUseWarning", "checked_if_asked", "process_ledger")


class UnorderedUseWarning(RuntimeWarning):
    """Two uses of the same memory that nothing orders: chance decides which is first."""


def _warn(race: Race) -> None:
    warnings.warn_explicit(str(race), UnorderedUseWarning, *race.site)


_ledger = Ledger(report=_warn)


def process_ledger() -> Ledger:
    """The record of the debug mode, over all devices."""
    return _ledger


def checked_if_asked(driver: Driver) -> Driver:
    """`driver`, under the checker if the debug mode is on."""
    return CheckedDriver(driver, _ledger) if config().check else driver
