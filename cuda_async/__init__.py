"""Asynchronous work on GPUs and on the CPU.

Lazy operations, streams, awaitable results.

    from cuda_async import Device, value, zip

    op = value(20).map(lambda x: x + 1).then(lambda x: value(2 * x))     # nothing has run
    op.sync()                                                            # 42; or: await op

See `op.py` for how to write an operation, `core/policy.py` for who chooses the stream and who waits.
"""

import sys
from typing import TYPE_CHECKING, NoReturn

from cuda_async.combinators import empty, value, with_context
from cuda_async.combinators import zip as zip
from cuda_async.core.context import ExecutionContext
from cuda_async.core.device import Device, default_device, device_count, set_default_device
from cuda_async.core.event import Event
from cuda_async.core.future import DeviceFuture, FutureState
from cuda_async.core.lease import Lease, Use
from cuda_async.core.memory import MemPool, PoolStatistics
from cuda_async.core.module import (
    Function,
    Module,
    load_module_from_bytes,
    load_module_from_cuda_src,
    load_module_from_file,
    load_module_from_ptx_src,
)
from cuda_async.core.operation import UnrunOperationWarning
from cuda_async.core.pending import Pending
from cuda_async.core.policy import (
    SchedulingPolicy,
    SingleStream,
    StreamPoolRoundRobin,
    global_policy,
    set_global_policy,
)
from cuda_async.core.storage import Storage
from cuda_async.core.stream import Stream
from cuda_async.driver.debug import UnorderedUseWarning
from cuda_async.errors import (
    ArgumentError,
    ArgumentTypeError,
    CollectiveError,
    ContextError,
    DependencyError,
    DeviceError,
    DeviceLostError,
    DriverError,
    InternalError,
    KernelCacheError,
    LaunchError,
    NoDeviceError,
    NotReadyError,
    OutOfMemoryError,
    OwnershipError,
    ReentrancyError,
    SchedulingError,
    WouldBlockError,
)
from cuda_async.graph import CudaGraph
from cuda_async.hints import remedy_for as _remedy_for
from cuda_async.instrument import Instrument, ObservedOperation, add_instrument, instrumented, remove_instrument
from cuda_async.launch import AsyncKernelLaunch, LaunchConfig
from cuda_async.op import DeviceOp, into_op
from cuda_async.peer import copy_storage
from cuda_async.shared import SharedDeviceOp, shared, unzip
from cuda_async.site import register_internal_package
from cuda_async.spread import spread
from cuda_async.staging import download, upload
from cuda_async.statistics import CompletionStatistics, completion_statistics

# `zip` is public but not in __all__: `from cuda_async import *` must not hide Python's.
__all__ = (
    "ArgumentError",
    "ArgumentTypeError",
    "AsyncKernelLaunch",
    "CollectiveError",
    "CompletionStatistics",
    "ContextError",
    "CudaGraph",
    "DependencyError",
    "Device",
    "DeviceError",
    "DeviceFuture",
    "DeviceLostError",
    "DeviceOp",
    "DriverError",
    "Event",
    "ExecutionContext",
    "Function",
    "FutureState",
    "Instrument",
    "InternalError",
    "KernelCacheError",
    "LaunchConfig",
    "LaunchError",
    "Lease",
    "MemPool",
    "Module",
    "NoDeviceError",
    "NotReadyError",
    "ObservedOperation",
    "OutOfMemoryError",
    "OwnershipError",
    "Pending",
    "PoolStatistics",
    "ReentrancyError",
    "SchedulingError",
    "SchedulingPolicy",
    "SharedDeviceOp",
    "SingleStream",
    "Storage",
    "Stream",
    "StreamPoolRoundRobin",
    "UnorderedUseWarning",
    "UnrunOperationWarning",
    "Use",
    "WouldBlockError",
    "add_instrument",
    "completion_statistics",
    "copy_storage",
    "default_device",
    "device_count",
    "download",
    "empty",
    "global_policy",
    "instrumented",
    "into_op",
    "load_module_from_bytes",
    "load_module_from_cuda_src",
    "load_module_from_file",
    "load_module_from_ptx_src",
    "register_internal_package",
    "remove_instrument",
    "set_default_device",
    "set_global_policy",
    "shared",
    "spread",
    "unzip",
    "upload",
    "value",
    "with_context",
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        # Protocols and imports look for underscored names that are not there: they need no remedy.
        remedy = "" if name.startswith("_") else _remedy_for(name, __all__)
        words = f"module 'cuda_async' has no attribute {name!r}{remedy}"
        raise AttributeError(words, name=name, obj=sys.modules[__name__])
