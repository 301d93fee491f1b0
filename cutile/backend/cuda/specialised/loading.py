"""Lowering to specialised warps: what those do that load."""

from __future__ import annotations

from cutile.backend.cuda.ops import BulkLoad, PipelineAcquire
from cutile.backend.cuda.panels import GROUP
from cutile.backend.cuda.specialised.divided import DividedLoop
from cutile.backend.cuda.specialised.operand import Operand
from cutile.ir.control import For
from cutile.ir.core import Op, Value


class Loading(DividedLoop):
    """The walk of the loading warps: over the operations that their loads need, and no others."""

    def _load_tile(self) -> None:
        """What a tile block needs loaded."""
        self._tile_indices()
        # Assertions that follow the loop come before it, so that those that compute know of them by the first turn.
        for op in self._function.body.operations:
            if op in self._loaders and op not in self._hoisted:
                self._operation(op)
        self._load_turns(self._plan.loop)

    @property
    def _loaders(self) -> frozenset[Op]:
        """The operations of the kernel that the loading warps do."""
        return self._plan.needed | self._plan.asserts

    @property
    def _on_failure(self) -> tuple[int, *tuple[Value, ...]]:
        """Nobody leaves, since others wait for what is loaded; what is stored from here on is dropped."""
        assert self._flag is not None
        return (GROUP * self._plan.groups, self._flag)

    def _load_turns(self, loop: For) -> None:
        """The loop of products: a slot for each turn, as soon as one is empty."""
        turn = Value(self._current_turn.type, "turn")
        with self._builder.block(self._copy(loop.induction), turn) as body:
            for op in loop.body.operations:
                if op in self._loaders:
                    self._operation(op)
            self._builder.location = self._plan.product.location
            nbytes = self._plan.left.panels.nbytes + self._plan.right.panels.nbytes
            self._builder.add(PipelineAcquire(self._pipeline, turn, nbytes=nbytes, limited=self._plan.limited))
            self._load_operand(self._plan.left, self._left, turn)
            self._load_operand(self._plan.right, self._right, turn)
            self._builder.yield_(self._turn_after(turn, 1))
        self._builder.location = loop.location
        bounds = self._bounds()
        made = For(start=bounds[0], stop=bounds[1], step=bounds[2], carried=(self._current_turn,), body=body)
        self._builder.add(made)
        (self._turn,) = made.results

    def _load_operand(self, operand: Operand, buffer: Value, turn: Value) -> None:
        load = operand.load
        self._builder.location = load.location
        index = tuple(self._map[value] for value in load.index)
        name = self._map_name(load.x, operand.map)
        axis = operand.lead + operand.axis
        self._builder.add(
            BulkLoad(
                self._map[load.x], buffer, self._pipeline, turn, index, map=name, axis=axis, cluster=operand.shared
            )
        )
