"""The simulated driver, for tests.

`driver.py` is the device, `virtual.py` its streams in virtual time.
"""

from cuda_async.driver.sim.driver import SimDriver

__all__ = ("SimDriver",)
