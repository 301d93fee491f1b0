"""Tools for tests of code that uses `cuda_async`: a simulator, a checker, a wait.

driver = SimDriver(seed=7)
device = Device.from_driver(driver)
driver.fail("launch", at=3)                # the third launch from now fails
...
wait_all_idle(device)                      # in place of a sleep
assert driver.memory_info().used == 0      # nothing leaked
assert driver.pinned_bytes == 0            # nor any page-locked memory of the host

checked = CheckedDriver(SimDriver(seed=7))  # or of the CPU: CheckedDriver(Device.host().driver)
device = Device.from_driver(checked)
...
assert not checked.races                   # every use of memory was ordered
"""

from __future__ import annotations

import gc

from cuda_async.core.device import Device
from cuda_async.core.event import wait_done
from cuda_async.core.policy import policy_streams
from cuda_async.core.stream import Stream
from cuda_async.driver.checked import CheckedDriver, Ledger, Race
from cuda_async.driver.sim import SimDriver

__all__ = ("CheckedDriver", "Ledger", "Race", "SimDriver", "wait_all_idle")


def wait_all_idle(device: Device, *streams: Stream) -> None:
    """Collect garbage, make finalizers' calls, and wait for streams.

    On a simulated device all work is finished. On other devices this waits for the given streams and for those of the
    policy. Errors of that work are not raised here: the callers that ran it get them.
    """
    gc.collect()
    device.collect()
    driver = device.driver
    if isinstance(driver, CheckedDriver):
        driver = driver.inner
    if isinstance(driver, SimDriver):
        driver.run_until_idle()
        return
    for stream in (*streams, *policy_streams(device)):
        event = device.borrow_event()
        try:
            stream.driver.record(event)
            wait_done(event)
        finally:
            device.return_event(event)
