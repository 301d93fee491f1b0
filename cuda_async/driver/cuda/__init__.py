"""The CUDA driver.

Importing it is cheap and safe: the bindings are imported only when a driver was found.
"""

from __future__ import annotations

from cuda_async.driver.cuda.probe import count_devices, open_device, why_none

__all__ = ("count_devices", "open_device", "why_none")
