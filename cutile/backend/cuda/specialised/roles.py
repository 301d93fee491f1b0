"""Lowering to specialised warps: the plan of `rules.py`, carried out.

%pipeline = cuda.pipeline(%x_buffer, %y_buffer) {stages = 4, arrivals = 2}
cuda.barriers_start(%pipeline)
cuda.roles() {groups = 2} {
  cuda.registers() {count = 40}
  if elected: for tile in first..all by step: for k in 0..n: acquire(turn); load x, y; turn += 1
} {
  cuda.registers() {count = 232}
  for tile in first..all by step:
    for k in 0..n: wait(turn); acc = group_mma(acc, turn); release(turn - 1); turn += 1
    ... the rest of the kernel, with the sums in registers
}
"""

from __future__ import annotations

from cutile.backend.cuda.ops import (
    AddNearby,
    BulkDrain,
    BulkPrefetch,
    ClusterEnd,
    ClusterStart,
    Elected,
    FollowOn,
    Part,
    Registers,
    Roles,
)
from cutile.backend.cuda.panels import GROUP
from cutile.backend.cuda.specialised.computing import Computing
from cutile.backend.cuda.specialised.epilogue import cut
from cutile.backend.cuda.specialised.loading import Loading
from cutile.backend.cuda.specialised.nearby import beside, loop_beside
from cutile.backend.cuda.specialised.record import Specialised
from cutile.backend.cuda.specialised.split import part_layout
from cutile.backend.cuda.target import Architecture
from cutile.ir.control import If
from cutile.ir.core import Function, Value


class RoleLowering(Loading, Computing):
    """One walk for the loading warps, over what they need, and one for those that compute, over everything."""

    def __init__(self, function: Function, plan: Specialised, arch: Architecture) -> None:
        nearby = loop_beside(function, plan.loop, plan.parts)
        if not plan.exchanged:  # then its columns are dealt to warps
            function = cut(function, plan.loop, plan.piece, ahead=not (plan.narrow or plan.by_fma))
        whole = function
        if nearby is not None:
            function = beside(function, nearby)
        cuts = [op for op in function.walk() if isinstance(op, Part | AddNearby)]
        parts = [(op, part_layout(plan.accumulator, op.parts)) for op in cuts]
        super().__init__(function, plan, arch, ((plan.product, plan.accumulator), *parts))
        # What stores a tile's parts runs in place of what stores all of it: nothing is stored over.
        self._shared_tensors = self._find_shared_tensors(whole) | self._exposed

    def run(self) -> Function:
        """The lowered function."""
        source, plan, builder = self._function, self._plan, self._builder
        shrunk, grown = plan.registers
        with builder.block(*(self._copy(value) for value in source.parameters)) as body:
            for tensor, name in self._name_maps():
                builder.add(BulkPrefetch(x=self._map[tensor], map=name))
            self._reserve()
            builder.add(FollowOn())
            if plan.cluster > 1 or plan.parts:
                builder.add(ClusterStart())
            with builder.block() as load:
                if shrunk:
                    builder.add(Registers(count=shrunk, grow=False))
                elected = builder.value(Elected(groups=plan.groups))
                with builder.block() as then:
                    self._tiles(self._load_tile)
                    builder.yield_()
                with builder.block() as orelse:
                    builder.yield_()
                builder.add(If(condition=elected, then=then, orelse=orelse))
                builder.yield_()
            with builder.block() as compute:
                if grown:
                    builder.add(Registers(count=grown, grow=True))
                kept = self._nothing_kept()
                self._tiles(self._compute_tile, alone=plan.groups if plan.alone else 1, kept=kept)
                if plan.store is not None:
                    builder.add(BulkDrain())
                builder.yield_()
            builder.add(Roles(load=load, compute=compute, groups=plan.groups))
            if plan.cluster > 1:
                builder.add(ClusterEnd())
        made = Function(source.name, body, source.source, source.file, "cuda")
        self._arena.place()
        made.facts = self._facts(
            threads=plan.threads,
            min_blocks=1,
            early=self._early,
            **self._divided_facts(),
            cluster=plan.pieces if plan.parts else plan.cluster,
            computing=GROUP * plan.groups,
            **({"speaks": True} if plan.limited else {}),  # where a wait lasts too long
            tensor_maps=tuple(
                (name, source.parameters.index(value), form.box, form.swizzle, form.order, form.rounded)
                for (value, form), name in self._maps.items()
            ),
        )
        return made

    def _name_maps(self) -> list[tuple[Value, str]]:
        """The maps of what is loaded and stored by the copy engine, in the order of their first use."""
        plan = self._plan
        found = [(each.load.x, self._map_name(each.load.x, each.map)) for each in (plan.left, plan.right)]
        if plan.store is not None:
            found.append((plan.store.x, self._map_name(plan.store.x, plan.store_map)))
        return found
