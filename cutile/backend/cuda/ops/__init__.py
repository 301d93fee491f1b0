"""Operations that only this backend's lowered IR has.

Every decision about them stands in their attributes. Lowered operations of the language keep their classes and carry
further attributes:

- `layout`: the name of the result's layout; `source`, of the operand's (of both operands' for `mma`). The function's
  fact `layouts` has the layouts by name.
- `vector`: the axis and width of wide accesses.
- `offset` and `fence`: the place in shared memory, in bytes, and whether it may still be in use.

Most name the `intrinsic` that they become, which `emit/generic.py` writes; the others have emitters of their own.
"""

from cutile.backend.cuda.ops.memory import AddTile, Barrier, ConvertLayout, Failed, FailUnless, Store, StoreSubtile
from cutile.backend.cuda.ops.mma import (
    Dot,
    DotWait,
    OptimizationBarrier,
    SimtMma,
    Subtile,
    Undef,
    Wgmma,
    WgmmaWait,
    WriteOperand,
    ZeroUnless,
)
from cutile.backend.cuda.ops.pipeline import (
    Barriers,
    BarriersStart,
    Buffer,
    ClusterEnd,
    ClusterStart,
    OrderBarrierArrive,
    OrderBarrierWait,
    Pipeline,
    PipelineAcquire,
    PipelineRelease,
    PipelineWait,
    ReadBuffer,
    Scratch,
)
from cutile.backend.cuda.ops.roles import (
    Elected,
    FirstIteration,
    FirstTile,
    GridDependencyWait,
    NextTile,
    ReceiveTile,
    Roles,
    SendTile,
    SetMaxRegisters,
    TileIndex,
    TileStep,
    TripCount,
    Uniform,
    WarpgroupIndex,
)
from cutile.backend.cuda.ops.split_k import Fixup, KSplits, ReducePartials, ScatterPartials, WorkUnit
from cutile.backend.cuda.ops.stage import StageCommit, StagedMma, StagePut, StageRead, StageTile, StageWait
from cutile.backend.cuda.ops.tma import PackPairs, TmaLoad, TmaPrefetch, TmaStore, TmaStoreWait

__all__ = (
    "AddTile",
    "Barrier",
    "Barriers",
    "BarriersStart",
    "Buffer",
    "ClusterEnd",
    "ClusterStart",
    "ConvertLayout",
    "Dot",
    "DotWait",
    "Elected",
    "FailUnless",
    "Failed",
    "FirstIteration",
    "FirstTile",
    "Fixup",
    "GridDependencyWait",
    "KSplits",
    "NextTile",
    "OptimizationBarrier",
    "OrderBarrierArrive",
    "OrderBarrierWait",
    "PackPairs",
    "Pipeline",
    "PipelineAcquire",
    "PipelineRelease",
    "PipelineWait",
    "ReadBuffer",
    "ReceiveTile",
    "ReducePartials",
    "Roles",
    "ScatterPartials",
    "Scratch",
    "SendTile",
    "SetMaxRegisters",
    "SimtMma",
    "StageCommit",
    "StagePut",
    "StageRead",
    "StageTile",
    "StageWait",
    "StagedMma",
    "Store",
    "StoreSubtile",
    "Subtile",
    "TileIndex",
    "TileStep",
    "TmaLoad",
    "TmaPrefetch",
    "TmaStore",
    "TmaStoreWait",
    "TripCount",
    "Undef",
    "Uniform",
    "WarpgroupIndex",
    "Wgmma",
    "WgmmaWait",
    "WorkUnit",
    "WriteOperand",
    "ZeroUnless",
)
