"""Loops that run on the device.

The variables that a body assigns are carried from one iteration to the next. A `for` without `break` stays a `For`,
for which the backends have plans. A `for` that can be left early becomes a `While`, whose condition also tests a flag
for each exit.

A Python number that a loop changes takes the type that the body gives it: `m = float("-inf")` before a loop over
`m = max(m, row)` becomes a tile. The type is guessed first, and the compiled body shows the right one. After a wrong
guess the operations of the loop are deleted, and the loop is built again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cutile.dtypes import bool_, i64
from cutile.errors import KernelError, KernelTypeError
from cutile.frontend import operators
from cutile.frontend.branches import WHOLE, guarded, zeros
from cutile.frontend.captures import MISSING
from cutile.frontend.flow import Exit, Flow, assigned, is_only_overwritten, leaves_loop
from cutile.frontend.frame import RETURNED, CarriedLeaf, Frame, LoopState, Suppressed, is_undefined
from cutile.frontend.operators import is_number, is_tile_or_number, materialize
from cutile.frontend.plain_numbers import adapted, interval_of, is_weak, is_whole, narrows, of_weak
from cutile.frontend.structure import leaves, refill, same_constant, same_constants, same_structure
from cutile.frontend.tensor_parts import Form, in_parts, joined_forms, parts_of, put_together, taken_apart, tensors_in
from cutile.frontend.values import FAULTY, Faulty, TensorParts, Undefined, describe, is_tile
from cutile.ir import Block, Constant, TileType, Value

MAX_ATTEMPTS = 8
"""Builds of one loop, beyond one for each carried leaf and each dropped variable. A build settles at least one of them,
unless types follow from one another. Types that change in more builds are an error. Chosen, not measured."""


class _CarriedChanged(Exception):
    """Raised when the loop carries other leaves, so that it has to be built again."""


class Loop:
    """One loop being compiled: its carried variables, and the search for their types.

    Args:
        frame: of the function that has the loop.
        node: its syntax.
        runs_at_least_once: whether the body certainly does.

    Attributes:
        assigned: the names that the body assigns, with the first place of each.
        before: the variables before the loop.
        places: the syntax that assigned each of them.
        exits: the ways out of the body besides its end: `break`, `return`, or both.
        templates: of each carried variable, a value with the structure that it keeps. Leaves that are tiles or numbers
            are carried; all others are constants.
        state: the `LoopState` of the iteration that is or was last compiled.
        carried: the carried leaves of all templates, in the order of the templates.
        dropped: the variables that are not carried, since every iteration assigns them before it reads them.
        ends: the carried variables at the end of the body.
        forms: of each variable with tensors, their forms by the number of the leaf; see `tensor_parts.py`.
        target: the variable of a `for`; empty for `while`.
        body_flow: the state of control at the end of the compiled body: whether some path reaches it, and the exits
            that others took.
    """

    def __init__(self, frame: Frame, node: ast.For | ast.While, runs_at_least_once: bool) -> None:
        self.frame = frame
        self.node = node
        self.runs_at_least_once = runs_at_least_once
        self.assigned = assigned([*([node.target] if isinstance(node, ast.For) else []), *node.body])
        self.before = dict(frame.variables)
        self.places = dict(frame.places)
        self.state = LoopState(frozenset())
        has_break, has_return = leaves_loop(node.body)
        self.exits = [Exit.BREAK] * has_break + [Exit.RETURN] * has_return
        self.templates: dict[str, Any] = {}
        self.carried: list[CarriedLeaf] = []
        self.dropped: set[str] = set()
        self.ends: dict[str, Any] = {}
        self.forms: dict[str, dict[int, Form]] = {}
        self._guessed = False
        self.target = node.target.id if isinstance(node, ast.For) and isinstance(node.target, ast.Name) else ""
        self.body_flow = Flow()
        for name in self.assigned:
            # Each iteration sets the variable of a `for`. It is carried only if code after the loop was found to read
            # it, which compiles the kernel again (`PassOn`).
            needed = name != self.target or (id(node), name) in frame.compilation.passed_on
            if needed and not self._is_undefined_before(name):
                self._carry(name, self.before[name])

    def _carry(self, name: str, value: Any) -> None:
        """Carry a variable with the value that it has before the loop."""
        template = self.templates[name] = taken_apart(value, self.forms.get(name, {}))
        for leaf in leaves(template):
            if is_tile(leaf):
                self.carried.append(CarriedLeaf(name, leaf, leaf.tile, fixed=True, weak=is_weak(self.frame, leaf)))
            elif is_number(leaf):
                self.carried.append(CarriedLeaf(name, leaf, None, fixed=False, weak=not isinstance(leaf, bool)))

    def _begin(self, name: str, value: Any, forms: dict[int, Form]) -> None:
        """Carry a variable that the loop is first to assign; `value`: at an exit."""
        self.forms[name] = forms
        template = self.templates[name] = taken_apart(value, forms)
        for leaf in leaves(template):
            if is_tile_or_number(leaf):
                number: Any = leaf
                type = leaf.tile if is_tile(leaf) else TileType(operators.default_dtype(number))
                weak = is_weak(self.frame, leaf) and not isinstance(leaf, bool)
                self.carried.append(CarriedLeaf(name, None, type, fixed=False, weak=weak))

    # Before an iteration

    def start(self) -> list[Value]:
        """The initial values as tiles, in the enclosing block."""
        initial: list[Value] = []
        parts = self._initial_parts()
        for leaf in self.carried:
            if leaf.initial in parts:  # a number or None is not in it: its keys are values of the IR
                initial.append(parts[leaf.initial])
                continue
            if is_tile(leaf.initial):
                initial.append(adapted(self.frame, leaf.initial, (leaf.type or leaf.initial.tile).dtype))
                continue
            common = leaf.type = leaf.type or TileType(operators.default_dtype(leaf.initial))
            if leaf.initial is None:  # never read: the variable has no value in the first iteration (`bind`)
                initial.append(self.frame.emit(zeros(common)))
            else:
                with self.frame.errors_at(leaf.name):
                    initial.append(materialize(self.frame, leaf.initial, common.dtype, common.shape))
        return initial

    def _initial_parts(self) -> dict[Any, Value]:
        """The parts of tensors before the loop, by their stand-ins in the templates."""
        parts_before: dict[Any, Value] = {}
        for name, template in self.templates.items():
            if self._is_undefined_before(name) or not self.forms.get(name):
                continue  # begun by the loop: `start` has zeros for the parts
            for parts, tensor in zip(tensors_in(template), tensors_in(self.before[name]), strict=True):
                if isinstance(parts, TensorParts):
                    parts_before.update(zip(parts.items, parts_of(self.frame, tensor.value, parts.form), strict=True))
        return parts_before

    def arguments(self) -> list[Value]:
        """Block arguments for the carried values."""
        arguments = [Value(leaf.started_type, leaf.ir_name) for leaf in self.carried]
        self._mark_weak(arguments)
        return arguments

    def _mark_weak(self, values: Sequence[Value]) -> None:
        """Note that carried weak scalars are weak in each iteration and after the loop."""
        for value, leaf in zip(values, self.carried, strict=True):
            if leaf.weak:
                of_weak(self.frame, value)

    def bind(self, values: Sequence[Any], *, inside: bool) -> None:
        """Let the variables mean `values`.

        Inside the loop, a variable without a value before it is `Undefined`: the first iteration has none. Its `hidden`
        is the carried value, for the merge with a branch that assigns the variable (`branches.py`).
        """
        rest = iter(values)
        for name, template in self.templates.items():
            items = [next(rest) if is_tile_or_number(leaf) else leaf for leaf in leaves(template)]
            filled = refill(template, iter(items))
            if self.forms.get(name):
                filled = put_together(self.frame, filled, name)
            # The error of a faulty value was reported: no second one says that the variable has none.
            if inside and self._is_undefined_before(name) and not isinstance(self.before.get(name), Faulty):
                why = f"the first iteration of the loop in line {self._line} uses it before assigning it"
                filled = Undefined(why, hidden=filled)
            self.frame.variables[name] = filled

    @property
    def _line(self) -> int:
        return self.frame.locate(self.node).line

    # One iteration

    def iteration(self, prepare: Callable[[], None]) -> None:
        """Compile the body, after `prepare` has set the loop variable.

        Afterwards `body_flow` has the exits that the body took. Paths of `continue` count as those that reach the end.
        """
        frame = self.frame
        outer = frame.loop, frame.flow
        self.state = frame.loop = LoopState(frozenset(self.templates))
        frame.flow = Flow()
        try:
            prepare()
            frame.execute(self.node.body)
            if frame.flow.falls:
                self.state.leave(Exit.CONTINUE, frame.variables)
            frame.flow.rejoin(Exit.CONTINUE)
            self.body_flow = frame.flow
        finally:
            frame.loop, frame.flow = outer

    def finish(self) -> list[Value] | None:
        """The values at the end of an iteration; None if the loop has to be built again.

        It has to be if a wrong guess of a type was corrected, or if the loop carries other variables now.
        """
        try:
            return self._finish()
        except _CarriedChanged:
            return None

    def _begin_missing(self) -> bool:
        """Carry variables that code after the loop reads, and only it assigns.

        Returns whether there are any. `passed_on` knows the loop's syntax. A helper's loop is compiled for each call,
        and not each call passes all of them on.
        """
        names = {name for loop, name in self.frame.compilation.passed_on if loop == id(self.node)}
        if not self.runs_at_least_once:  # a dropped variable has another type before it, so it has none after it
            names -= self.dropped
        if Exit.RETURN in self.body_flow.taken:
            names.add(RETURNED)
        count = len(self.templates)
        for name in sorted(names - self.templates.keys()):
            # No path may reach the end of the body; the variable has no value there then.
            values = [self.frame.variables.get(name, MISSING), *self.state.values(name, tuple(Exit))]
            values = [value for value in values if value is not MISSING and not is_undefined(value, name)]
            if values:
                tensors = enumerate(tensors_in(values[0]))
                forms = {k: Form.of(tensor.value) for k, tensor in tensors if tensor is not None}
                self._begin(name, values[0], forms)
        return len(self.templates) > count

    def _drop(self, name: str) -> None:
        """Stop carrying a variable, if each iteration assigns it before it reads it.

        A variable that is not carried may have another type in each iteration.

        Raises:
            _CarriedChanged: the variable is dropped. The call returns if the variable has to be carried.
        """
        is_overwritten = is_only_overwritten(self.node, name, self.frame.body)
        if is_overwritten and name in self.before and name not in self.dropped:
            self.dropped.add(name)
            del self.templates[name]
            self.carried = [leaf for leaf in self.carried if leaf.name != name]
            raise _CarriedChanged

    def _with_parts(self, name: str, template: Any, value: Any) -> Any:
        """A variable's value at the end of an iteration, with scalars for tensors.

        The parts of a tensor are its address, and the extents and strides that its form leaves open. If the tensor's
        form differs from the template's, the loop carries the common form of both from now on.
        """
        old_tensors, new_tensors = tensors_in(template), tensors_in(value)
        if len(old_tensors) != len(new_tensors) or not any(tensor is not None for tensor in old_tensors):
            return value
        old_forms = self.forms.get(name, {})
        forms = joined_forms(old_forms, old_tensors, new_tensors)
        if forms is None:
            return value  # the caller reports a changed type
        if forms != old_forms:
            # If the loop may not run, a dropped variable has no value after it (`_after`). Tensors have a common form,
            # so the loop carries the variable.
            if self.runs_at_least_once:
                self._drop(name)
            if isinstance(self.before.get(name), Faulty):
                raise Suppressed(f"{name!r} is faulty", self.frame.locate(self.node))
            # The new leaves take the place of the old ones: leaves are in the order of the templates.
            others, self.carried = self.carried, []
            if self._is_undefined_before(name):
                self._begin(name, value, forms)
            else:
                self.forms[name] = forms
                self._carry(name, self.before[name])
            own, self.carried = self.carried, []
            for variable in self.templates:
                self.carried += own if variable == name else [leaf for leaf in others if leaf.name == variable]
            raise _CarriedChanged
        return in_parts(self.frame, value, old_tensors)

    def _finish(self) -> list[Value] | None:
        taken = [exit for exit in (Exit.BREAK, Exit.RETURN) if exit in self.body_flow.taken]
        if taken != self.exits:  # `exits` was read from the syntax, which has branches that are never compiled
            self.exits = taken
            return None
        variables = self.frame.variables
        if self._begin_missing():
            return None
        ends: list[Value | None] = []  # None: the leaf's type has changed
        conflicts: list[tuple[str, Undefined]] = []
        rest = iter(self.carried)
        for name, template in self.templates.items():
            value = variables.get(name)
            conflict = self.state.conflicts.get((Exit.CONTINUE, name))
            if is_undefined(value, name) and value.hidden is not None:  # not each path of the body assigned it
                value = value.hidden
            # A faulty value was reported already. Nothing reads one of two types, unless it is read where `conflicts`
            # are reported.
            if isinstance(value, Faulty) or conflict is not None:
                carried = filter(is_tile_or_number, leaves(template))
                ends += [self.frame.emit(zeros(next(rest).started_type)) for _ in carried]
                if conflict is not None and not self._is_undefined_before(name):
                    conflicts.append((name, conflict))
                continue
            value = self._with_parts(name, template, value)
            if not same_structure(template, value):
                how = f"it is {describe(template)} before, {describe(value)} at the end of the body"
                self._drop_or_report_type(name, how)
            for old, new in zip(leaves(template), leaves(value), strict=True):
                if not is_tile_or_number(old):
                    if not same_constant(old, new):
                        self._drop_or_report_constant(name, old, new)
                    continue
                ends.append(self._end_of(name, next(rest), old, new))
        self.ends = {name: variables.get(name) for name in self.templates}
        values = [value for value in ends if value is not None]
        if len(values) < len(ends):
            return None
        for name, conflict in conflicts:  # not before: with other types they may be none
            self._drop_or_report_type(name, conflict.why, conflict.places)
        return values

    def _end_of(self, name: str, leaf: CarriedLeaf, old: Any, new: Any) -> Value | None:
        """The value of a leaf at the end of an iteration, as the leaf's type.

        Args:
            old: the leaf in the template.
            new: its value at the end of the body.

        Returns:
            None where the body gives another type. The leaf has that type from now on.
        """
        type = leaf.started_type
        if narrows(self.frame, leaf.initial, type.dtype):
            self._drop_or_report_type(name, f"it is {describe(old)} before, {type} at the end of the body")
        # A weak integer is an i32 or i64 in the IR, and converts to the leaf's type if that is one of them.
        whole = type in WHOLE and is_whole(self.frame, new)
        if whole and leaf.weak and type.dtype is not i64 and not interval_of(self.frame, new).fits(type.dtype):
            leaf.type = TileType(i64)  # an i32 may not hold the number
            return None
        if narrows(self.frame, new, type.dtype):
            self._drop_or_report_type(name, f"it is {describe(old)} before, {describe(new)} at the end of the body")
        new = adapted(self.frame, new, type.dtype) if whole else new
        if is_number(new):
            becomes_float = isinstance(new, float) and type.dtype.is_integer and not leaf.fixed
            if not becomes_float:
                with self.frame.errors_at(name):
                    return materialize(self.frame, new, type.dtype, type.shape)
            leaf.type = TileType(operators.default_dtype(new), type.shape)
        elif not is_tile(new) or (leaf.doubted and new.tile.dtype.is_integer):
            self._drop_or_report_type(name, f"it is {describe(old)} before, {describe(new)} at the end of the body")
        elif isinstance(leaf.initial, float) and new.tile.dtype.is_integer:
            leaf.doubted = True
        elif leaf.weak and not whole and new.tile in WHOLE:
            # The body gives a scalar with a dtype of the user's. It was compiled with a weak one, which converts.
            leaf.type, leaf.weak = new.tile, False
        elif new.tile == type:
            if not leaf.weak or whole or is_weak(self.frame, new):
                return new
            leaf.weak = False  # of the right type, but no longer weak
        elif leaf.fixed:
            self._drop_or_report_type(name, f"it is {type} before, {new.type} at the end of the body")
        else:
            leaf.type = new.tile
        return None

    def _is_constant(self, name: str) -> bool:
        """Whether a variable is the same constant wherever the loop ends.

        Then it is a constant after the loop, too. If the loop may not run, the value before it is the same constant.
        """
        if name == RETURNED or name not in self.ends:
            return False
        end = self.ends[name]
        if isinstance(end, Undefined | Faulty) or not all(map(is_number, leaves(end))):
            return False
        return self.runs_at_least_once or same_constants(end, self.before.get(name))

    def flags(self) -> list[Value]:
        """Whether the iteration took each of `exits`, as bool scalars."""
        values: list[Value] = []
        for exit in self.exits:
            flag = self.body_flow.taken.get(exit, False)
            is_known = isinstance(flag, bool)
            values.append(self.frame.emit(Constant(value=flag, dtype=bool_, shape=())) if is_known else flag)
        return values

    def _drop_or_report_type(self, name: str, how: str, places: tuple[Any, ...] = ()) -> NoReturn:
        """Drop the variable if `_drop` can, else report that its type changes."""
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

    def _drop_or_report_constant(self, name: str, old: Any, new: Any) -> NoReturn:
        """Drop the variable if `_drop` can, else report that a constant changes."""
        self._drop(name)
        raise KernelTypeError(
            f"{name!r} is known when the kernel is compiled and cannot change in a loop: "
            f"it is {describe(old)} before, {describe(new)} at the end of the body",
            self.frame.locate(self.frame.places.get(name, self.node)),
            "Loops carry tiles and numbers; use another name, or unroll the loop with ct.static_range.",
        )

    # Attempts

    def build(self, build_once: Callable[[list[Value]], Any], compile_iteration: Callable[[], None]) -> Any:
        """Build the loop until its types settle.

        Args:
            build_once: makes the operation from the initial values. It gives None if types have changed.
            compile_iteration: compiles an iteration with the variables as they are, to see which types numbers take.

        Returns:
            The operation; None if the user's errors in it were reported.

        Raises:
            KernelTypeError: the types do not settle.
        """
        block, report, compilation = self.frame.builder.current, self.frame.report, self.frame.compilation
        count, settled = 0, False
        while count < MAX_ATTEMPTS + len(self.dropped) + len(self.carried):  # each may drop or change one variable
            count += 1
            length, mark, narrowed = len(block.operations), report.mark(), compilation.narrowed
            # An error may be the fault of a guessed type: meanwhile a full report does not end the compilation.
            has_guesses = self.has_guesses
            report.guesses += has_guesses
            compilation.unsettled += not settled
            try:
                result = build_once(self.start())
            except KernelError as error:
                if not has_guesses:
                    raise
                report.add(self._placed(error))
                result = FAULTY
            finally:
                report.guesses -= has_guesses
                compilation.unsettled -= not settled
            failed = result is FAULTY or report.added != mark.added
            if result is not None and not failed:
                if settled or compilation.unsettled or compilation.narrowed == narrowed:
                    return result
                settled, result = True, None  # the last build refuses numbers that may not fit (`narrows`)
            # If the result is None, types have changed: the next build shows which errors are the user's. If it is not
            # None, the errors are the user's, unless `_guess` finds other types.
            if failed and result is not None and not (has_guesses and self._guess(block, compile_iteration)):
                for name in self.assigned:
                    self.frame.variables[name] = FAULTY
                return None
            report.drop(mark)
            del block.operations[length:]
            self.reset()
        self.frame.type_error(
            "the types of this loop's variables do not settle",
            self.node,
            "Give them dtypes before the loop, as in k = ct.i64(0).",
        )

    @property
    def has_guesses(self) -> bool:
        """Whether some type is a guess that `_guess` has not yet tried to improve."""
        return any(not leaf.fixed for leaf in self.carried) and not self._guessed

    def _placed(self, error: KernelError) -> KernelError:
        copy = type(error)(error.message, self.frame.locate(self.node), error.remedy, error.places)
        return copy if error.location is None else error

    def reset(self) -> None:
        """Forget what an iteration did to the variables."""
        self.frame.variables = dict(self.before)
        self.frame.places = dict(self.places)

    def _guess(self, block: Block, compile_iteration: Callable[[], None]) -> bool:
        """Compile one iteration with compile-time numbers, to see their types after it.

        The operations of the iteration are deleted again. Returns whether some leaf has another type now.
        """
        self._guessed, learnt = True, False
        report = self.frame.report
        length, mark = len(block.operations), report.mark()
        self.reset()
        report.guesses += 1
        self.frame.compilation.unsettled += 1
        try:
            with self.frame.builder.block(), self.frame.dynamic():
                compile_iteration()
            rest = iter(self.carried)
            for name, template in self.templates.items():
                value = self.frame.variables.get(name)
                if not same_structure(template, value):
                    for _ in filter(is_tile_or_number, leaves(template)):
                        next(rest)
                    continue
                for old, new in zip(leaves(template), leaves(value), strict=True):
                    leaf = next(rest) if is_tile_or_number(old) else None
                    if leaf is None or leaf.fixed or not is_tile(new) or new.tile == leaf.type:
                        continue
                    if not (isinstance(leaf.initial, float) and new.tile.dtype.is_integer):
                        leaf.type, learnt = new.tile, True
        except KernelError:
            pass  # nothing was learnt: the errors of the build before are reported
        finally:
            report.guesses -= 1
            self.frame.compilation.unsettled -= 1
            report.drop(mark)
            del block.operations[length:]
            self.reset()
        return learnt

    # After the loop

    def leave(self, results: Sequence[Value], flags: Sequence[Value], endless: bool) -> None:
        """Bind the variables to the loop's results, compile its `else`, and set the flow.

        Args:
            results: the carried values after the loop, in the order of `carried`.
            flags: whether the loop was left by each of `exits`.
            endless: whether the condition is always true, so that only exits leave the loop.
        """
        frame = self.frame
        end, end_places = frame.variables, frame.places
        self.reset()
        for value, leaf in zip(results, self.carried, strict=True):
            value.name = leaf.ir_name
        self._mark_weak(results)
        self.bind(results, inside=False)
        frame.variables.update({name: self.ends[name] for name in self.templates if self._is_constant(name)})
        frame.places.update({name: end_places[name] for name in self.templates if name in end_places})
        # A constant range whose iterations all leave it never comes to its end.
        endless = endless or (self.runs_at_least_once and Exit.CONTINUE not in self.state.at)
        ends = () if endless else (Exit.CONTINUE,)
        # Paths that left by `break` skip the `else`. There a variable is a constant if it is the same constant at every
        # `break`.
        around = {name: value for name, value in self.state.constants.items() if name in self.templates}
        for name in self.assigned:
            if name in self.templates and not self._is_undefined_before(name):
                # It has a value on every path, which `bind` has set, but for a `break` where it is of two types.
                if conflict := self.state.conflicts.get((Exit.BREAK, name)):
                    (around if self.node.orelse else frame.variables)[name] = conflict
                continue
            carried = frame.variables.get(name)
            if self.node.orelse:
                around.setdefault(name, self._after(name, end.get(name), carried, (Exit.BREAK,)))
                frame.variables[name] = self._after(name, end.get(name), carried, ends)
            else:
                frame.variables[name] = self._after(name, end.get(name), carried, (Exit.BREAK, *ends))
        paths: dict[Exit, Any] = dict(zip(self.exits, flags, strict=True))
        broken = paths.pop(Exit.BREAK, None)
        if broken is not None:  # to code after this loop, its `break` only means that its `else` does not run
            paths[Exit.SKIP_ELSE] = broken
        frame.flow = Flow(not endless, paths)
        frame.flow.settle()
        if self.node.orelse:
            guarded(frame, lambda: frame.execute(self.node.orelse), self.node, around)
        frame.flow.rejoin(Exit.SKIP_ELSE)

    def _after(self, name: str, end: Any, carried: Any, exits: Sequence[Exit]) -> Any:
        """A variable's meaning after the loop, if it has none before, or is dropped.

        Args:
            end: its meaning at the end of the body; None where it has none.
            carried: the loop's result, if it carries the variable.
            exits: how the paths left the loop: by `break`, or by the end of the last iteration.
        """
        if isinstance(end, Faulty):
            return FAULTY
        before = self.before.get(name)
        values = self.state.values(name, exits)
        if may_not_run := Exit.CONTINUE in exits and not self.runs_at_least_once:
            # A variable that an earlier loop could pass on (`PassOn`) counts as one that has a value.
            is_missing = self._is_undefined_before(name) and getattr(before, "late", None) is None
            values.append(MISSING if is_missing else before)
        if name in self.dropped and (MISSING in values or not self.runs_at_least_once):
            places = [("in the loop it is assigned here", self.frame.locate(self.assigned[name]))]
            if (first := self.places.get(name)) is not None:
                places.insert(0, ("before the loop it is assigned here", self.frame.locate(first)))
            after = "of another type" if isinstance(end, Undefined | None) else describe(end)
            how = f"it is {describe(before)} before the loop in line {self._line}, {after} after an iteration"
            return Undefined(how, conflict=True, places=tuple(places))
        if all(value is not MISSING for value in values):
            if name in self.templates:
                return carried
            # A use compiles the kernel again. An inner or an earlier loop has to pass the value on first.
            late = [value.late for value in values if isinstance(value, Undefined)]
            return Undefined("the loop does not pass it on", late=late[0] if late else self.node)
        for value in (before, *(self.state.conflicts.get((exit, name)) for exit in exits)):
            if isinstance(value, Undefined) and value.conflict:
                return value  # it has values of two types, which says more than that some path assigns none
        how = "that may not run" if may_not_run else "not on every path"
        return Undefined(
            f"only the loop in line {self._line} assigns it, and {how}",
            places=(("it is assigned here", self.frame.locate(self.assigned[name])),),
        )

    def _is_undefined_before(self, name: str) -> bool:
        """Whether the variable has no value before the loop, or a faulty one."""
        return name not in self.before or isinstance(self.before[name], Undefined | Faulty)
