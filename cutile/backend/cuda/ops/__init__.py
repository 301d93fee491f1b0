"""Operations that only this backend's lowered IR has. Every decision about them stands in their attributes.

Lowered operations of the language keep their classes and carry further attributes: `layout`, the name of the result's
layout, `source`, that of the operand's (for `mma` the two operands'), `vector`, the axis and width of wide accesses,
`offset` and `fence`, the place in shared memory and whether it may still be in use. Names of layouts are looked up in
the function's fact `layouts`.

Most name the `intrinsic` that they become, which `emit/generic.py` writes; the others have emitters of their own.
"""

from cutile.backend.cuda.ops.bulk import BulkDrain, BulkLoad, BulkPrefetch, BulkStore, Pack
from cutile.backend.cuda.ops.debug import Failed, FailUnless
from cutile.backend.cuda.ops.dot import Dot, DotWait, WriteOperand
from cutile.backend.cuda.ops.group import Blank, GroupMma, GroupWait, Opaque, Part, ZeroUnless
from cutile.backend.cuda.ops.memory import AddTile, Barrier, Store, StorePart
from cutile.backend.cuda.ops.nearby import AddNearby, DealOut
from cutile.backend.cuda.ops.outer import OuterMma
from cutile.backend.cuda.ops.pipeline import (
    Barriers,
    BarriersStart,
    Buffer,
    ClusterEnd,
    ClusterStart,
    HandOver,
    Pipeline,
    PipelineAcquire,
    PipelineRelease,
    PipelineWait,
    Scratch,
    TakeOver,
)
from cutile.backend.cuda.ops.reading import ReadStage
from cutile.backend.cuda.ops.roles import (
    Elected,
    FirstTile,
    FirstTurn,
    FollowOn,
    GroupNumber,
    NextTile,
    ReceiveTile,
    Registers,
    Roles,
    SendTile,
    TileIndex,
    TileStep,
    Turns,
    Uniform,
)
from cutile.backend.cuda.ops.shape import ConvertLayout
from cutile.backend.cuda.ops.split import AddUp, Pieces, Share
from cutile.backend.cuda.ops.stage import StageCommit, StagedMma, StagePut, StageRead, StageTile, StageWait

__all__ = (
    "AddNearby",
    "AddTile",
    "AddUp",
    "Barrier",
    "Barriers",
    "BarriersStart",
    "Blank",
    "Buffer",
    "BulkDrain",
    "BulkLoad",
    "BulkPrefetch",
    "BulkStore",
    "ClusterEnd",
    "ClusterStart",
    "ConvertLayout",
    "DealOut",
    "Dot",
    "DotWait",
    "Elected",
    "FailUnless",
    "Failed",
    "FirstTile",
    "FirstTurn",
    "FollowOn",
    "GroupMma",
    "GroupNumber",
    "GroupWait",
    "HandOver",
    "NextTile",
    "Opaque",
    "OuterMma",
    "Pack",
    "Part",
    "Pieces",
    "Pipeline",
    "PipelineAcquire",
    "PipelineRelease",
    "PipelineWait",
    "ReadStage",
    "ReceiveTile",
    "Registers",
    "Roles",
    "Scratch",
    "SendTile",
    "Share",
    "StageCommit",
    "StagePut",
    "StageRead",
    "StageTile",
    "StageWait",
    "StagedMma",
    "Store",
    "StorePart",
    "TakeOver",
    "TileIndex",
    "TileStep",
    "Turns",
    "Uniform",
    "WriteOperand",
    "ZeroUnless",
)
