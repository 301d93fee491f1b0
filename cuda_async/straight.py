"""The short way: an operation that needs no books is enqueued without a `Run`.

A run is there for whoever follows it, and for what has to be held or done when the device is finished. An operation
that nobody follows and that says it needs neither (`DeviceOp.straight`) is enqueued by one call. Its leases end as soon
as it is enqueued: stream order keeps what comes later behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cuda_async import instrument
from cuda_async.lease import Lease, check_guards, current_holder, end
from cuda_async.op import DeviceOp
from cuda_async.site import Site, format_site
from cuda_async.stream import Stream

__all__ = ("add_path", "enqueue_alone", "is_open")

T = TypeVar("T")


def is_open(stream: Stream) -> bool:
    """Whether the short way is open: nothing captures, nothing is told of runs, and no run is being submitted."""
    return stream.recorder is None and not instrument.registered and current_holder() is None


def enqueue_alone(op: DeviceOp[T], enqueue: Callable[[Stream], T], stream: Stream, site: Site) -> T:
    """Enqueue `op` by its `straight()` and return its handles.

    Raises:
        OwnershipError: the operation was used before.
        BaseException: whatever the operation raised; what it held is free again.
    """
    leases: list[Lease] = op.begin(composed=False, site=site)
    try:  # as in `Run.submit` and `Run._enqueue`, as far as it concerns an operation alone
        with stream.submission:
            stream.device.collect()
            check_guards(leases, None)
            stream.driver.begin_alone()
            handles = enqueue(stream)
            if stream.has_lenders:
                stream.lead_lenders()
    except BaseException as error:
        add_path(error, [op], stream)
        raise
    finally:
        end(leases)
    return handles


def add_path(error: BaseException, path: list[DeviceOp[object]], stream: Stream) -> None:
    """Note on an error which operations were being submitted, outermost first."""
    steps = " > ".join(f"{op.label()} ({format_site(op.site)})" for op in path)
    error.add_note(f"while submitting {steps} on {stream}")
