"""The number of blocks of a kernel that a device runs at once, from the driver."""

from __future__ import annotations

from typing import Any

from cuda_async.driver.cuda.api import cu
from cuda_async.driver.cuda.context import PrimaryContext
from cuda_async.driver.cuda.stream import CudaFunction
from cuda_async.driver.interface import DeviceProperties
from cuda_async.errors import LaunchError

__all__ = ("resident_blocks",)


def resident_blocks(
    context: PrimaryContext,
    function: object,
    threads: int,
    shared_bytes: int,
    cluster: int,
    properties: DeviceProperties,
) -> int:
    """See `Driver.resident_blocks`."""
    if not isinstance(function, CudaFunction):
        raise LaunchError(f"resident_blocks: expected what load_function returned, got {type(function).__name__}")
    if cluster == 1:
        ask = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor
        blocks = int(context.call(ask, function.handle, threads, shared_bytes))  # of one multiprocessor
        return blocks * properties.multiprocessor_count
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    shape = attribute.value.clusterDim
    shape.x, shape.y, shape.z = cluster, 1, 1
    config: Any = cu.CUlaunchConfig()
    # The answer is for the whole device, whatever the grid, which must be of whole clusters.
    config.gridDimX, config.gridDimY, config.gridDimZ = cluster, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    config.attrs = [attribute]
    config.numAttrs = 1
    return int(context.call(cu.cuOccupancyMaxActiveClusters, function.handle, config)) * cluster
