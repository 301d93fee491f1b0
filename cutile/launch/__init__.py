"""Arguments to a `DeviceOp`: the only seam between the compiler and `cuda_async`."""
