"""Programmatic dependent launch: begin before the kernel ahead has ended.

Between two kernels of a stream lie about a microsecond in which the device does nothing, and then the second one sets
itself up. A kernel that waits by itself (`griddepcontrol.wait`) for what it follows may do the latter meanwhile.
Captured, such a launch depends on the one before it in the same way.
"""

from __future__ import annotations

from typing import Any

from cuda_async.driver.cuda.api import cu

__all__ = ("MAX_CONFIGURATIONS", "early_configuration")

Shape = tuple[int, int, int]

MAX_CONFIGURATIONS = 64
"""Kept of one function; beyond, all are made anew as they are wanted."""


def early_configuration(grid: Shape, block: Shape, shared_bytes: int, stream: Any) -> Any:
    """What `cuLaunchKernelEx` is told of such a launch.

    Made once for each shape and stream, since making one takes longer than the launch.
    """
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    configuration: Any = cu.CUlaunchConfig()
    configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ = grid
    configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ = block
    configuration.sharedMemBytes = shared_bytes
    configuration.hStream = stream
    configuration.attrs = [attribute]
    configuration.numAttrs = 1
    return configuration
