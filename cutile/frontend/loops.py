"""Loops that run on the device.

Variables that a body assigns become values carried from one turn to the next.

A `for` without `break` stays a `For`, which is what the backends' plans look for. One that can be left early becomes a
`While` whose condition asks a flag besides.

A Python number that a loop changes takes the type that the body gives it: `m = float("-inf")` before a loop over
`m = max(m, row)` becomes a tile. To find that type the body is compiled once more.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.dtypes import bool_, i32, i64
from cutile.errors import KernelError, KernelTypeError
from cutile.frontend import operators
from cutile.frontend.branches import WHOLE, guarded
from cutile.frontend.flow import Exit, Flow, assigned, is_only_overwritten, leaves_loop
from cutile.frontend.frame import RETURNED, Frame, LoopState
from cutile.frontend.operators import is_number, materialize
from cutile.frontend.structure import leaves, mapped, refill, same_constant, same_constants, same_structure
from cutile.frontend.tensor_parts import Form, is_tensor, joined_form, parts_of, put_together, taken_apart, tensors_in
from cutile.frontend.values import FAULTY, Faulty, TensorParts, Undefined, describe, is_tile
from cutile.frontend.weak import adapted, interval_of, is_weak, is_whole, of_weak
from cutile.ir import Block, Constant, TileType, Value
from cutile.ops.arith import Or

MAX_ATTEMPTS = 8


@dataclass
class _Leaf:
    """One tile that a loop carries: a variable, or a part of one.

    Attributes:
        initial: a tile, a number, or None where there is no value before the loop.
        type: its type; None until the body has told.
        fixed: whether the type is the user's: the initial value is a tile.
        plain: whether it is a plain number, as far as is known: an integer before the loop, and after every turn. It is
            taken for an i32 until a turn gives what that may not hold.
    """

    name: str
    initial: Any
    type: TileType | None
    fixed: bool
    plain: bool = False


class _Dropped(Exception):
    """A variable is not carried after all.

    Every turn overwrites it, with something of another type.
    """


class Loop:
    """One loop being compiled: what it carries, and finding the types of that.

    Args:
        run: compiles one turn of the body: `run(self, turn)`, see `attempt`.
        always: whether the body runs at least once.
    """

    def __init__(self, frame: Frame, node: ast.For | ast.While, always: bool) -> None:
        self.frame = frame
        self.node = node
        self.always = always
        self.assigned = assigned([*([node.target] if isinstance(node, ast.For) else []), *node.body])
        self.before = dict(frame.variables)
        self.places = dict(frame.places)
        self.state = LoopState(frozenset())
        self.exits = [
            exit for exit, there in zip((Exit.BREAK, Exit.RETURN), leaves_loop(node.body), strict=True) if there
        ]
        self.templates: dict[str, Any] = {}
        self.leaves: list[_Leaf] = []
        self.constants: dict[str, list[Any]] = {}
        self.dropped: set[str] = set()
        self.ends: dict[str, Any] = {}
        self.forms: dict[str, dict[int, Form]] = {}
        self._guessed = False
        self.target = node.target.id if isinstance(node, ast.For) and isinstance(node.target, ast.Name) else ""
        for name in self.assigned:
            value = self.before.get(name)
            asked = name != self.target or (id(node), name) in frame.compilation.passed_on
            if asked and name in self.before and not isinstance(value, Undefined | Faulty):
                self._carry(name, value)

    def _carry(self, name: str, value: Any) -> None:
        template = self.templates[name] = taken_apart(value, self.forms.get(name, {}))
        for leaf in leaves(template):
            if is_tile(leaf):
                self.leaves.append(_Leaf(name, leaf, leaf.tile, True, is_whole(self.frame, leaf)))
            elif is_number(leaf):
                self.leaves.append(_Leaf(name, leaf, None, False, type(leaf) is int))

    def _begin(self, name: str, value: Any) -> None:
        """Carry a variable that has no value before the loop.

        `value` is what a turn gave it.
        """
        forms = {k: Form.of(each.value) for k, each in enumerate(tensors_in(value)) if each is not None}
        self.forms[name] = forms
        template = self.templates[name] = taken_apart(value, forms)
        for leaf in leaves(template):
            if is_tile(leaf) or is_number(leaf):
                number: Any = leaf
                type = leaf.tile if is_tile(leaf) else TileType(operators.default_dtype(number))
                self.leaves.append(_Leaf(name, None, type, False))

    # Before a turn

    def start(self) -> list[Value]:
        """The initial values as tiles, in the enclosing block."""
        initial: list[Value] = []
        parts = self._initial_parts()
        for leaf in self.leaves:
            if leaf.initial in parts:
                initial.append(parts[leaf.initial])
                continue
            if is_tile(leaf.initial):
                common = leaf.type or leaf.initial.tile
                initial.append(adapted(self.frame, leaf.initial, common.dtype))
                continue
            common = leaf.type = leaf.type or TileType(operators.default_dtype(leaf.initial))
            if leaf.initial is None:
                zero = Constant(value=_zero(common), dtype=common.dtype, shape=common.shape)
                initial.append(self.frame.emit(zero))
            else:
                initial.append(materialize(self.frame, leaf.initial, common.dtype, common.shape))
        return initial

    def _initial_parts(self) -> dict[Any, Value]:
        """What stands for the parts of tensors before the loop: those parts."""
        parts_before: dict[Any, Value] = {}
        for name, template in self.templates.items():
            if name not in self.before or not self.forms.get(name):
                continue
            for parts, tensor in zip(tensors_in(template), tensors_in(self.before[name]), strict=True):
                if isinstance(parts, TensorParts):
                    parts_before.update(zip(parts.items, parts_of(self.frame, tensor.value, parts.form), strict=True))
        return parts_before

    def arguments(self) -> list[Value]:
        """Block arguments for the carried values."""
        made = [Value(leaf.type or TileType(i32), "" if leaf.name == RETURNED else leaf.name) for leaf in self.leaves]
        self._note(made)
        return made

    def _note(self, values: Sequence[Value]) -> None:
        """Plain numbers stay plain numbers, from turn to turn and after the loop."""
        for value, leaf in zip(values, self.leaves, strict=True):
            if leaf.plain:
                of_weak(self.frame, value)

    def bind(self, values: Sequence[Any], *, inside: bool) -> None:
        """Let the variables mean `values`.

        Inside, those without a value before have none yet.
        """
        rest = iter(values)
        for name, template in self.templates.items():
            filled = refill(template, iter([next(rest) if _carried(leaf) else leaf for leaf in leaves(template)]))
            if self.forms.get(name):
                filled = put_together(self.frame, filled, name)
            fresh = name not in self.before or isinstance(self.before[name], Undefined)
            if inside and fresh:
                why = f"the first turn of the loop in line {self._line} uses it before assigning it"
                filled = Undefined(why, hidden=filled)
            self.frame.variables[name] = filled

    @property
    def _line(self) -> int:
        return self.frame.locate(self.node).line

    # One turn

    def turn(self, prepare: Callable[[], None]) -> None:
        """Compile the body.

        Afterwards `frame.flow` holds the exits, `continue` among those that fall through.
        """
        frame = self.frame
        outer = frame.loop, frame.flow
        self.state = frame.loop = LoopState(frozenset(self.templates))
        frame.flow = Flow()
        try:
            prepare()
            frame.execute(self.node.body)
            frame.flow.rejoin(Exit.CONTINUE)
            self.left = frame.flow
        finally:
            frame.loop, frame.flow = outer

    def finish(self) -> list[Value] | None:
        """The values at the end of a turn.

        None if a type was guessed wrongly (it is right now).
        """
        try:
            return self._finish()
        except _Dropped:
            return None

    def _drop(self, name: str) -> None:
        """Carry a variable no longer if no iteration needs its value from before.

        Whatever type it had.
        """
        if name not in self.dropped and name in self.before and is_only_overwritten(self.node, name):
            self.dropped.add(name)
            del self.templates[name]
            self.leaves = [leaf for leaf in self.leaves if leaf.name != name]
            raise _Dropped

    def _parted(self, name: str, template: Any, value: Any) -> Any:
        """A variable's value at the end of an iteration, its tensors taken apart.

        As those in the template are.
        """
        olds, news = tensors_in(template), tensors_in(value)
        if len(olds) != len(news) or not any(each is not None for each in olds):
            return value
        forms = dict(self.forms.get(name, {}))
        for k, (old, new) in enumerate(zip(olds, news, strict=True)):
            if old is None or new is None or same_constant(old, new):
                continue
            known = old.template if isinstance(old, TensorParts) else old
            form = joined_form(known, new)
            if form is not None and isinstance(old, TensorParts):
                form = form.join(old.form)
            if form is None:
                return value  # of another kind, which is said
            forms[k] = form
        if forms != self.forms.get(name, {}):
            if self.always:  # else what it is before the loop may be needed behind it
                self._drop(name)
            self.forms[name] = forms
            others, self.leaves = self.leaves, []
            self._carry(name, self.before[name])
            of_name = self.leaves
            self.leaves = []
            for each in self.templates:
                self.leaves += of_name if each == name else [leaf for leaf in others if leaf.name == each]
            raise _Dropped
        parts = iter(olds)

        def apart(leaf: Any) -> Any:
            old = next(parts)
            if not isinstance(old, TensorParts) or not is_tensor(leaf):
                return leaf
            return TensorParts(old.form, old.template, tuple(parts_of(self.frame, leaf.value, old.form)))

        return mapped(value, apart)

    def _finish(self) -> list[Value] | None:
        taken = [exit for exit in (Exit.BREAK, Exit.RETURN) if exit in self.left.taken]
        if taken != self.exits:  # some are in dead branches
            self.exits = taken
            return None
        variables = self.frame.variables
        names = {name for loop, name in self.frame.compilation.passed_on if loop == id(self.node)}
        if Exit.RETURN in self.left.taken:
            names.add(RETURNED)
        if missing := sorted(names - self.templates.keys()):
            for name in missing:
                value = variables.get(name)
                at_break = self.state.at_break or {}
                self._begin(name, at_break.get(name) if value is None or isinstance(value, Undefined) else value)
            return None
        stand_ins: list[Value | None] = []
        rest = iter(self.leaves)
        for name, template in self.templates.items():
            value = variables.get(name)
            if isinstance(value, Undefined) and value.hidden is not None:
                value = value.hidden
            if isinstance(value, Faulty):
                stand_ins.extend(self.frame.emit(_stand_in(next(rest))) for leaf in leaves(template) if _carried(leaf))
                continue
            if isinstance(value, Undefined) and value.conflict:
                self._changed(name, value.why, value.places)
            value = self._parted(name, template, value)
            if not same_structure(template, value):
                self._changed(name, f"it is {describe(template)} before, {describe(value)} at the end of the body")
            for old, new in zip(leaves(template), leaves(value), strict=True):
                if not _carried(old):
                    if not same_constant(old, new):
                        self._fixed(name, old, new)
                    continue
                stand_ins.append(self._end_of(name, next(rest), old, new))
        self.ends = {name: variables.get(name) for name in self.templates}
        values = [value for value in stand_ins if value is not None]
        return values if len(values) == len(stand_ins) else None

    def _end_of(self, name: str, leaf: _Leaf, old: Any, new: Any) -> Value | None:
        """What an iteration makes of a leaf.

        None where its type is another from now on, as the body has told.
        """
        assert leaf.type is not None
        whole = leaf.type in WHOLE and is_whole(self.frame, new)
        if whole and leaf.plain and not interval_of(self.frame, new).fits(leaf.type.dtype):
            leaf.type = TileType(i64)
            return None
        new = adapted(self.frame, new, leaf.type.dtype) if whole else new
        if is_number(new):
            if not (isinstance(new, float) and leaf.type.dtype.is_integer and not leaf.fixed):
                return materialize(self.frame, new, leaf.type.dtype, leaf.type.shape)
            leaf.type = TileType(operators.default_dtype(new), leaf.type.shape)
        elif not is_tile(new):
            self._changed(name, f"it is {describe(old)} before, {describe(new)} at the end of the body")
        elif leaf.plain and not whole and new.tile in WHOLE:  # what was compiled took it for plain
            leaf.type, leaf.plain = new.tile, False
        elif new.tile == leaf.type:
            if not (leaf.plain and not whole and not is_weak(self.frame, new)):
                return new
            leaf.plain = False
        elif leaf.fixed:
            self._changed(name, f"it is {leaf.type} before, {new.type} at the end of the body")
        else:
            leaf.type = new.tile
        return None

    def _constant(self, name: str) -> bool:
        """Whether a variable is the same constant however its loop is left.

        So that it stays one.
        """
        if name == RETURNED or name not in self.ends:
            return False
        end = self.ends[name]
        if isinstance(end, Undefined | Faulty) or not all(map(is_number, leaves(end))):
            return False
        return self.always or same_constants(end, self.before.get(name))

    def flags(self) -> list[Value]:
        """The exits that a turn took, as bool scalars, in the order of `exits`."""
        values: list[Value] = []
        for exit in self.exits:
            flag = self.left.taken.get(exit, False)
            values.append(
                self.frame.emit(Constant(value=flag, dtype=bool_, shape=())) if isinstance(flag, bool) else flag
            )
        return values

    def _changed(self, name: str, how: str, places: tuple[Any, ...] = ()) -> None:
        self._drop(name)
        node = self.frame.places.get(name, self.assigned.get(name, self.node))
        if not places and (before := self.places.get(name)) is not None:
            places = (("before the loop it is assigned here", self.frame.locate(before)),)
        raise KernelTypeError(
            f"{name!r} changes its type in the loop: {how}",
            self.frame.locate(node),
            "A variable keeps its dtype and shape from one step to the next; convert, reshape or broadcast it.",
            places,
        )

    def _fixed(self, name: str, old: Any, new: Any) -> None:
        self._drop(name)
        raise KernelTypeError(
            f"{name!r} is known when the kernel is compiled and cannot change in a loop: "
            f"it is {describe(old)} before, {describe(new)} at the end of the body",
            self.frame.locate(self.frame.places.get(name, self.node)),
            "Loops carry tiles and numbers; use another name, or unroll the loop with ct.static_range.",
        )

    # Attempts

    def attempts(self, build: Callable[[list[Value]], Any], turn: Callable[[], None]) -> Any:
        """Build the loop, again while types are being found.

        Args:
            build: makes the operation from the initial values; None to be tried again.
            turn: compiles one turn with the variables as they are, to see what types numbers take.
        """
        block = self.frame.builder.current
        report = self.frame.report
        for _ in range(MAX_ATTEMPTS):
            length, mark = len(block.operations), report.mark()
            weak = self.weak
            report.held += weak
            try:
                result = build(self.start())
            except KernelError as error:
                if not weak:
                    raise
                report.add(self._placed(error))
                result = FAULTY
            finally:
                report.held -= weak
            failed = result is FAULTY or report.mark() != mark
            if result is not None and not failed:
                return result
            if failed and result is not None and not (weak and self._guess(block, turn)):
                for name in self.assigned:
                    self.frame.variables[name] = FAULTY
                return None
            report.drop(mark)
            del block.operations[length:]
            self.reset()
        self.frame.type_error("the types of this loop's variables do not settle", self.node)

    @property
    def weak(self) -> bool:
        """Whether some type is not the user's but a guess."""
        return any(not leaf.fixed for leaf in self.leaves) and not self._guessed

    def _placed(self, error: KernelError) -> KernelError:
        if error.location is not None:
            return error
        return type(error)(error.message, self.frame.locate(self.node), error.remedy, error.places)

    def reset(self) -> None:
        """Forget what a turn did to the variables."""
        self.frame.variables = dict(self.before)
        self.frame.places = dict(self.places)

    def _guess(self, block: Block, turn: Callable[[], None]) -> bool:
        """Let the numbers be numbers for one turn, to see what they become.

        Returns whether that tells anything new.
        """
        self._guessed = True
        report = self.frame.report
        length, mark = len(block.operations), report.mark()
        self.reset()
        report.held += 1
        learnt = False
        try:
            with self.frame.builder.block(), self.frame.dynamic():
                turn()
            rest = iter(self.leaves)
            for name, template in self.templates.items():
                value = self.frame.variables.get(name)
                pairs = zip(leaves(template), leaves(value), strict=True) if same_structure(template, value) else ()
                for old, new in pairs:
                    leaf = next(rest) if _carried(old) else None
                    if leaf is not None and not leaf.fixed and is_tile(new) and new.tile != leaf.type:
                        leaf.type, learnt = new.tile, True
                if not pairs:
                    for _ in filter(_carried, leaves(template)):
                        next(rest)
        except KernelError:
            pass
        finally:
            report.held -= 1
            report.drop(mark)
            del block.operations[length:]
            self.reset()
        return learnt

    # After the loop

    def leave(self, results: Sequence[Value], flags: Sequence[Value], endless: bool) -> None:
        """Let variables mean the loop's results, run its `else`, note where control goes."""
        frame = self.frame
        end, end_places = frame.variables, frame.places
        self.reset()
        for value, leaf in zip(results, self.leaves, strict=True):
            value.name = "" if leaf.name == RETURNED else leaf.name
        self._note(results)
        self.bind(results, inside=False)
        frame.variables.update({name: self.ends[name] for name in self.templates if self._constant(name)})
        frame.places.update({name: end_places[name] for name in self.templates if name in end_places})
        for name in self.assigned:
            if name not in self.templates:
                frame.variables[name] = self._after(name, end.get(name))
        paths: dict[Exit, Any] = dict(zip(self.exits, flags, strict=True))
        broke = paths.pop(Exit.BREAK, None)
        if broke is not None:
            paths[Exit.ENDED] = broke
        frame.flow = Flow(not endless, paths)
        frame.flow.settle()
        if self.node.orelse:
            constants = {name: value for name, value in self.state.constants.items() if name in self.templates}
            guarded(frame, lambda: frame.execute(self.node.orelse), self.node, constants)
        frame.flow.rejoin(Exit.ENDED)

    def _after(self, name: str, end: Any) -> Any:
        """What a variable that the loop does not carry means after it."""
        if isinstance(end, Faulty):
            return FAULTY
        before = self.before.get(name)
        defined = isinstance(self.node, ast.While) or not (end is None or isinstance(end, Undefined))
        if self.state.at_break is not None:
            defined = defined and name in self.state.at_break
        is_known = name in self.before and not isinstance(before, Undefined | Faulty)
        if name in self.dropped and not self.always:
            places = [("in the loop it is assigned here", self.frame.locate(self.assigned[name]))]
            if (first := self.places.get(name)) is not None:
                places.insert(0, ("before the loop it is assigned here", self.frame.locate(first)))
            how = f"it is {describe(before)} before the loop in line {self._line}, {describe(end)} after a turn"
            return Undefined(how, conflict=True, places=tuple(places))
        if defined and (self.always or is_known):
            return Undefined("the loop does not pass it on", late=self.node)
        place = self.frame.locate(self.assigned[name])
        return Undefined(
            f"only the loop in line {self._line} assigns it, and that may not run",
            places=(("it is assigned here", place),),
        )


def exited(frame: Frame, flags: Sequence[Value]) -> Value:
    """Whether any of the flags is set."""
    result = flags[0]
    for flag in flags[1:]:
        result = frame.emit(Or(x=result, y=flag))
    return result


def _carried(leaf: Any) -> bool:
    return is_tile(leaf) or is_number(leaf)


def _stand_in(leaf: _Leaf) -> Constant:
    """A value for what was reported as faulty, so that its loop can be read on."""
    type = leaf.type or TileType(i32)
    return Constant(value=_zero(type), dtype=type.dtype, shape=type.shape)


def _zero(type: TileType) -> bool | int | float:
    return {"bool": False, "float": 0.0}.get(type.dtype.kind, 0)
