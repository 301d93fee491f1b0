"""Multistage loads: `cp.async` to stages in shared memory, and reads of them."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import Coordinates, frag, intrinsic, pack
from cutile.backend.cuda.intrinsics.llvm import (
    I32,
    PIECE_BYTES,
    SHARED,
    VOID,
    address,
    asm,
    barrier,
    from_shared,
    i32c,
    pointer,
    shared,
    thread,
)
from cutile.backend.cuda.intrinsics.memory import Access, View, split, vector_type
from cutile.backend.cuda.intrinsics.pipeline import wait_parity
from cutile.backend.cuda.smem_sizes import BARRIER_BYTES, widest
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import DTypeLike, i32


def stage_shift(b: Any, iteration: Any, stages: int, size: int) -> Any:
    """Bytes from the first stage to the stage of an iteration."""
    return b.mul(b.urem(iteration, i32c(stages)), i32c(size))


def _thread_place(b: Any, at: Coordinates, strides: Sequence[int], axis: int) -> Any:
    """Offset of this thread's first element in a stage, in elements."""
    first: Any = None
    for other, stride in enumerate(strides):
        if other != axis and stride:  # stride 0 marks an axis of extent 1; along `axis` the stride is 1
            part = b.mul(at.thread_part(other), i32c(stride))
            first = part if first is None else b.add(first, part)
    return at.thread_part(axis) if first is None else b.add(first, at.thread_part(axis))


@cache
def stage_tile(
    view: View,
    layout: Layout,
    *,
    axis: int,
    width: int,
    strides: tuple[int, ...],
    stages: int,
    stage_bytes: int,
    offset: int,
    steps: tuple[int, ...] | None = None,
    limited: tuple[int, ...] = (),
) -> Any:
    """Start the copy of a tile to a stage.

    `f(base, *extents, *strides, *tile index, *limits, iteration)`.

    Elements outside of the tensor become 0. `extents` and `strides` are the tensor's dynamic ones.

    Args:
        view: of the tensor.
        layout: which thread copies which elements. Neighbours along `axis` are adjacent in memory and in the stage.
        axis: the contiguous one.
        width: elements of one copy, which has 4, 8 or 16 bytes.
        strides: of the tile in a stage, in elements.
        stages: number of stages.
        stage_bytes: from stage to stage.
        offset: of the first stage, in bytes.
        steps: elements from tile to tile along each axis, where they are not the tile's extents.
        limited: the axes on which the tensor ends at a limit.
    """
    size = view.dtype.bits // 8
    if layout.vector(axis) < width:
        raise ValueError(f"no {width} neighbours along axis {axis} in {layout}")

    def generate(b: Any, values: list[Any]) -> None:
        *rest, iteration = values
        access = Access(b, view, layout, rest, steps, limited)
        first = _thread_place(b, access.at, strides, axis)
        first = b.add(b.mul(first, i32c(size)), b.add(stage_shift(b, iteration, stages, stage_bytes), i32c(offset)))
        target = b.ptrtoint(shared(b, first), I32)
        interior, edge, done = (b.append_basic_block(name) for name in ("inside", "edge", "staged"))
        b.cbranch(access.interior, interior, edge)
        for where, is_interior in ((interior, True), (edge, False)):
            b.position_at_end(where)
            access.enter()
            for register in range(0, layout.registers, width):
                _copy(b, access, register, target, axis, width, strides, is_interior)
            b.branch(done)
        b.position_at_end(done)

    return intrinsic("stage_tile", None, [*view.arguments(len(limited)), frag(i32, 0)], generate)


@cache
def stage_row(
    view: View,
    layout: Layout,
    *,
    axis: int,
    width: int,
    strides: tuple[int, ...],
    parts: int,
    nbytes: int,
    offset: int,
    counter: int,
) -> Any:
    """Start the bulk copies of a row to shared memory, as a whole or slice by slice.

    `f(base, *extents, *strides, *tile index)`. `wait_bulk_slice` waits for one of the copies.

    The row is one stretch of memory, and one thread copies it for all. If the tensor ends within the row, each
    thread copies the elements that it will read, and elements outside become 0.

    Args:
        view, layout, axis, width, strides: as of `stage_tile`, of the whole row.
        parts: number of copies.
        nbytes: of a copy.
        offset: where the row goes in shared memory, in bytes.
        counter: where the copies' barriers are in shared memory, in bytes. Each counts the bytes of one copy, once.
    """
    size = view.dtype.bits // 8

    def generate(b: Any, values: list[Any]) -> None:
        access = Access(b, view, layout, values)
        place = b.add(b.mul(_thread_place(b, access.at, strides, axis), i32c(size)), i32c(offset))
        target = b.ptrtoint(shared(b, place), I32)
        barriers = address(b, counter)
        copies = b.icmp_unsigned("==", thread(b), i32c(0))
        with b.if_then(copies):
            for part in range(parts):
                # Each barrier has one arrival, which announces the bytes (PTX ISA, "mbarrier.init").
                text = f"mbarrier.init.shared::cta.b64 [$0+{part * BARRIER_BYTES}], 1;"
                asm(b, VOID, [barriers], text, "r,~{memory}", effect=True)
            # The fence shows the new barriers to the copies, which count their bytes there (PTX ISA, "membar / fence").
            asm(b, VOID, [], "fence.mbarrier_init.release.cluster;", "~{memory}", effect=True)
        interior, edge, done = (b.append_basic_block(name) for name in ("inside", "edge", "begun"))
        b.cbranch(access.interior, interior, edge)
        b.position_at_end(interior)
        with b.if_then(copies):
            source = access.address(0)
            for part in range(parts):
                arrived, shift = f"[$0+{part * BARRIER_BYTES}]", part * nbytes
                # The first slice first, since a pass over the row begins with it (PTX ISA, "mbarrier.arrive",
                # "cp.async.bulk").
                text = (
                    f"mbarrier.arrive.expect_tx.shared::cta.b64 _, {arrived}, {nbytes}; "
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                    f"[$1+{shift}], [$2+{shift}], {nbytes}, {arrived};"
                )
                asm(b, VOID, [barriers, target, source], text, "r,r,l,~{memory}", effect=True)
        b.branch(done)
        b.position_at_end(edge)
        access.enter()
        for register in range(0, layout.registers, width):
            _copy(b, access, register, target, axis, width, strides, False)
        # It waits for this thread's copies only, and no other thread reads these (PTX ISA, "cp.async.wait_all").
        asm(b, VOID, [], "cp.async.wait_all;", "~{memory}", effect=True)
        with b.if_then(copies):  # the phases complete, as `wait_bulk_slice` expects
            for part in range(parts):
                text = f"mbarrier.arrive.shared::cta.b64 _, [$0+{part * BARRIER_BYTES}];"
                asm(b, VOID, [barriers], text, "r,~{memory}", effect=True)
        b.branch(done)
        b.position_at_end(done)
        barrier(b)  # the barriers are set up before anyone waits at them

    return intrinsic("stage_row", None, view.arguments(0), generate)


def _copy(
    b: Any, access: Access, register: int, target: Any, axis: int, width: int, strides: Sequence[int], interior: bool
) -> None:
    """One copy; `interior`: no edge of the tensor cuts the tile."""
    layout, size = access.layout, access.view.dtype.bits // 8
    offset, nbytes = layout.offsets[register], width * size
    place = b.add(target, i32c(sum(o * stride for o, stride in zip(offset, strides, strict=True)) * size))
    operands = [place, access.address(register)]
    caches = "cg" if nbytes == PIECE_BYTES else "ca"  # only whole 16 bytes go past L1 (PTX ISA, "cp.async")
    text, constraints = f"cp.async.{caches}.shared.global [$0], [$1], {nbytes};", "r,l,~{memory}"
    if not interior:
        operands.append(access.bytes_inside(register, axis, width))
        text, constraints = f"cp.async.{caches}.shared.global [$0], [$1], {nbytes}, $2;", "r,l,r,~{memory}"
    inside = access.at.inside(register)
    # Asynchronous, until `wait`. At an edge the last operand is the number of bytes to read; the rest of the copy
    # becomes zeros (PTX ISA, "cp.async").
    if inside is None:
        asm(b, VOID, operands, text, constraints, effect=True)
        return
    with b.if_then(inside):  # elements past the tile's edge would overwrite the next buffer in shared memory
        asm(b, VOID, operands, text, constraints, effect=True)


@cache
def stage_read(
    dtype: DTypeLike,
    layout: Layout,
    *,
    axis: int,
    strides: tuple[int, ...],
    stages: int,
    stage_bytes: int,
    offset: int,
) -> Any:
    """`f(iteration)`: the tile in its stage, in registers.

    `layout` says which thread reads which elements. The other arguments are those of `stage_tile`.
    """
    size, width = dtype.bits // 8, widest(layout, axis, strides, dtype)

    def generate(b: Any, values: list[Any]) -> Any:
        at = Coordinates(b, layout)
        base = b.add(stage_shift(b, values[0], stages, stage_bytes), i32c(offset))
        own = b.add(b.mul(_thread_place(b, at, strides, axis), i32c(size)), base)
        elements: list[Any] = []
        for register in range(0, layout.registers, width):
            step = sum(o * stride for o, stride in zip(layout.offsets[register], strides, strict=True)) * size
            where = b.add(own, i32c(step))
            inside = at.inside(register)
            if inside is not None:  # past the tile's edge: read the stage's first element
                where = b.select(inside, where, base)
            kind = vector_type(dtype, width)
            place = pointer(b, shared(b, where), kind, SHARED)
            if width == 1:
                elements.append(from_shared(b, dtype, place))
                continue
            vector = b.load(place)
            vector.align = size * width
            elements += split(b, dtype, vector, width)
        return pack(b, elements, layout.registers)

    return intrinsic("stage_read", frag(dtype, layout.registers), [frag(i32, 0)], generate)


@cache
def commit() -> Any:
    """`f()`: the copies begun since the last commit are one group."""

    def generate(b: Any, _: list[Any]) -> None:
        # Each thread counts its own groups, empty ones as well, so that all count alike (PTX ISA,
        # "cp.async.commit_group").
        asm(b, VOID, [], "cp.async.commit_group;", "~{memory}", effect=True)

    return intrinsic("commit", None, [], generate)


@cache
def wait(pending: int, meet: bool = True) -> Any:
    """`f()`: wait until at most `pending` groups are under way.

    `meet`: a barrier follows, so that every thread sees all threads' copies.
    """

    def generate(b: Any, _: list[Any]) -> None:
        # It waits for the copies of this thread alone (PTX ISA, "cp.async.wait_group").
        asm(b, VOID, [], f"cp.async.wait_group {pending};", "~{memory}", effect=True)
        if meet:
            # Behind the barrier the other threads' copies are visible, and nobody still reads the stage that is filled
            # next.
            barrier(b)

    return intrinsic("wait", None, [], generate)


@cache
def wait_slice(later: tuple[int, ...]) -> Any:
    """`f(part)`: wait until this thread's copies of a slice are there.

    `later` has, for each slice, the number of groups that are begun behind its own.
    """

    def generate(b: Any, values: list[Any]) -> None:
        done = b.append_basic_block("arrived")
        switch = b.switch(values[0], done)
        for part, pending in enumerate(later):
            block = b.append_basic_block(f"slice_{part}")
            switch.add_case(i32c(part), block)
            b.position_at_end(block)
            # The number of groups is part of the instruction (PTX ISA, "cp.async.wait_group").
            asm(b, VOID, [], f"cp.async.wait_group {pending};", "~{memory}", effect=True)
            b.branch(done)
        b.position_at_end(done)

    return intrinsic("wait_slice", None, [frag(i32, 0)], generate)


@cache
def wait_bulk_slice(counter: int) -> Any:
    """`f(part)`: wait until all bytes of a slice are there.

    `counter`: where the barrier of the first slice is, in bytes; the others follow.
    """

    def generate(b: Any, values: list[Any]) -> None:
        wait_parity(b, b.add(address(b, counter), b.mul(values[0], i32c(BARRIER_BYTES))), i32c(0))

    return intrinsic("wait_slice", None, [frag(i32, 0)], generate)
