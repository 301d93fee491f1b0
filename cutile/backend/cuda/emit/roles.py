"""Specialised warps: who does what, of which tile blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.common.abi import GRID_NAMES, WORKSPACE
from cutile.backend.cuda.emit.keywords import barriers, limit, numbers, offset
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.roles import (
    Elected,
    FirstTile,
    FirstTurn,
    FollowOn,
    GroupNumber,
    NextTile,
    ReceiveTile,
    Registers,
    SendTile,
    TileIndex,
    TileStep,
    Turns,
    Uniform,
)

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def _alone(groups: int) -> list[str]:
    return [f"alone={groups}"] if groups > 1 else []


def follow_on(op: FollowOn, kernel: Kernel) -> Call:
    """`follow_on()`."""
    return Call(kernel.bind("follow_on", "roles.follow_on"), ())


def registers(op: Registers, kernel: Kernel) -> Call:
    """`take_registers()`, or `give_registers()`."""
    name = "take_registers" if op.grow else "give_registers"
    return Call(kernel.bind(name, "roles.registers", *numbers(op, "count", "grow")), ())


def elected(op: Elected, kernel: Kernel) -> Call:
    """`elected()`."""
    return Call(kernel.bind("elected", "roles.elected", str(op.groups)), ())


def group_number(op: GroupNumber, kernel: Kernel) -> Call:
    """`own_group()`."""
    return Call(kernel.bind("own_group", "roles.own_group"), ())


def first_tile(op: FirstTile, kernel: Kernel) -> Call:
    """`first_tile()`."""
    name = "first_own_tile" if op.alone > 1 else "first_tile"
    return Call(kernel.bind(name, "roles.first_tile", str(op.cluster), *_alone(op.alone)), ())


def tile_step(op: TileStep, kernel: Kernel) -> Call:
    """`tile_step()`."""
    name = "own_tile_step" if op.alone > 1 else "tile_step"
    return Call(kernel.bind(name, "roles.tile_step", str(op.cluster), *_alone(op.alone)), ())


def next_tile(op: NextTile, kernel: Kernel) -> Call:
    """`next_tile(workspace, total)`."""
    return Call(kernel.bind("next_tile", "roles.next_tile"), (WORKSPACE, kernel.use(op.total)))


def uniform(op: Uniform, kernel: Kernel) -> Call:
    """`uniform(tile)`."""
    return Call(kernel.bind("uniform", "roles.uniform"), (kernel.use(op.x),))


def send_tile(op: SendTile, kernel: Kernel) -> Call:
    """`send_tile(counter, tile)`."""
    where = [*barriers(op.pipeline, kernel), f"place={offset(op.through, kernel)}"]
    made = kernel.bind("send_tile", "roles.send_tile", *where, *limit(op))
    return Call(made, (kernel.use(op.counter), kernel.use(op.number)))


def receive_tile(op: ReceiveTile, kernel: Kernel) -> Call:
    """`receive_tile(counter)`."""
    stages, _ = barriers(op.pipeline, kernel)
    made = kernel.bind("receive_tile", "roles.receive_tile", stages, f"place={offset(op.through, kernel)}")
    return Call(made, (kernel.use(op.counter),))


def turns(op: Turns, kernel: Kernel) -> Call:
    """`turns(start, stop, step)`."""
    return Call(kernel.bind("turns", "roles.turns"), tuple(map(kernel.use, op.operands)))


def first_turn(op: FirstTurn, kernel: Kernel) -> Call:
    """`first_turn(turns)`."""
    return Call(kernel.bind("first_turn", "roles.first_turn"), (kernel.use(op.turns),))


def tile_index(op: TileIndex, kernel: Kernel) -> Call:
    """`tile_index_0(tile, grid_x, grid_y, grid_z)`."""
    made = kernel.bind(
        f"tile_index_{op.axis}",
        "roles.tile_index",
        str(op.axis),
        *numbers(op, "rows", "columns", "group", "cluster", "along"),
        *(["backwards=True"] if op.backwards else []),
    )
    return Call(made, (kernel.use(op.number), *GRID_NAMES))


EMITTERS = {
    FollowOn: follow_on,
    NextTile: next_tile,
    Uniform: uniform,
    SendTile: send_tile,
    ReceiveTile: receive_tile,
    Registers: registers,
    Elected: elected,
    GroupNumber: group_number,
    FirstTile: first_tile,
    TileStep: tile_step,
    Turns: turns,
    FirstTurn: first_turn,
    TileIndex: tile_index,
}
