"""Programmatic dependent launch: begin before the kernel ahead has ended.

Between two kernels of a stream the device does nothing for about a microsecond, and then the second one sets itself
up. A kernel that itself waits for the kernel ahead (`griddepcontrol.wait`) may begin, and set itself up, before the
kernel ahead has ended. In a captured graph such a launch depends on the launch before it in the same way.
"""

from __future__ import annotations

from typing import Any

from cuda_async.driver.cuda.api import cu

__all__ = ("MAX_CONFIGURATIONS", "early_configuration")

Shape = tuple[int, int, int]

MAX_CONFIGURATIONS = 64
"""Configurations that one function keeps. When there would be more, all are dropped."""


def early_configuration(grid: Shape, block: Shape, shared_bytes: int, stream: Any) -> Any:
    """The configuration of a launch that may begin early, for `cuLaunchKernelEx`.

    It is made once for each shape and stream, since making one takes longer than the launch.
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
