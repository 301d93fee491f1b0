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
from dataclasses import dataclass
from typing import Any, NoReturn

from cutile.dtypes import bool_, i64
from cutile.errors import KernelError, KernelTypeError
from cutile.frontend import operators
from cutile.frontend.branches import WHOLE, guarded, zeros
from cutile.frontend.captures import MISSING
from cutile.frontend.flow import Exit, Flow, assigned, is_only_overwritten, leaves_loop
from cutile.frontend.frame import RETURNED, Frame, LoopState, is_undefined
from cutile.frontend.operators import is_number, is_tile_or_number, materialize
from cutile.frontend.plain_numbers import adapted, interval_of, is_weak, is_whole, of_weak
from cutile.frontend.structure import leaves, mapped, refill, same_constant, same_constants, same_structure
from cutile.frontend.tensor_parts import Form, is_tensor, joined_form, parts_of, put_together, taken_apart, tensors_in
from cutile.frontend.values import FAULTY, Faulty, TensorParts, Undefined, describe, is_tile
from cutile.ir import Block, Constant, TileType, Value

MAX_ATTEMPTS = 8
"""Builds of one loop, beyond one for each leaf that it carries or drops. Types that still change are an error."""


@dataclass
class _CarriedLeaf:
    """One leaf that a loop carries as a tile: a variable, or a part of one.

    Attributes:
        name: the variable.
        initial: a tile, a number, or None where there is no value before the loop.
        type: its type; None before `Loop.start` has set it.
        fixed: whether the initial value is a tile, so that its type is the user's. Other types are guesses.
        weak: whether it is a weak scalar (`plain_numbers.py`): a plain number before the loop, and at the end of each
            iteration that was compiled. An integer is an i32 until an iteration gives one that may not fit.
        doubted: whether a float was an integer at the end of an iteration. With a better guess of another variable's
            type it may be a float in the next build.
    """

    name: str
    initial: Any
    type: TileType | None
    fixed: bool
    weak: bool = False
    doubted: bool = False

    @property
    def settled(self) -> TileType:
        """`type`, once `Loop.start` has set it."""
        assert self.type is not None
        return self.type


class _CarriedChanged(Exception):
    """Raised when the loop carries other leaves, so that it has to be built again."""


class Loop:
    """One loop being compiled: its carried variables, and the search for their types.

    Args:
        frame: of the function that has the loop.
        node: its syntax.
        always: whether the body runs at least once.

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

    def __init__(self, frame: Frame, node: ast.For | ast.While, always: bool) -> None:
        self.frame = frame
        self.node = node
        self.always = always
        self.assigned = assigned([*([node.target] if isinstance(node, ast.For) else []), *node.body])
        self.before = dict(frame.variables)
        self.places = dict(frame.places)
        self.state = LoopState(frozenset())
        has_break, has_return = leaves_loop(node.body)
        self.exits = [Exit.BREAK] * has_break + [Exit.RETURN] * has_return
        self.templates: dict[str, Any] = {}
        self.carried: list[_CarriedLeaf] = []
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
            if needed and not self._fresh(name):
                self._carry(name, self.before[name])

    def _carry(self, name: str, value: Any) -> None:
        """Carry a variable with the value that it has before the loop."""
        template = self.templates[name] = taken_apart(value, self.forms.get(name, {}))
        for leaf in leaves(template):
            if is_tile(leaf):
                self.carried.append(_CarriedLeaf(name, leaf, leaf.tile, fixed=True, weak=is_weak(self.frame, leaf)))
            elif is_number(leaf):
                self.carried.append(_CarriedLeaf(name, leaf, None, fixed=False, weak=type(leaf) is not bool))

    def _begin(self, name: str, value: Any) -> None:
        """Carry a variable that the loop is first to assign; `value`: at the body's end."""
        forms = {k: Form.of(tensor.value) for k, tensor in enumerate(tensors_in(value)) if tensor is not None}
        self.forms[name] = forms
        template = self.templates[name] = taken_apart(value, forms)
        for leaf in leaves(template):
            if is_tile_or_number(leaf):
                number: Any = leaf
                type = leaf.tile if is_tile(leaf) else TileType(operators.default_dtype(number))
                self.carried.append(_CarriedLeaf(name, None, type, fixed=False, weak=is_weak(self.frame, leaf)))

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
            if name not in self.before or not self.forms.get(name):
                continue
            for parts, tensor in zip(tensors_in(template), tensors_in(self.before[name]), strict=True):
                if isinstance(parts, TensorParts):
                    parts_before.update(zip(parts.items, parts_of(self.frame, tensor.value, parts.form), strict=True))
        return parts_before

    def arguments(self) -> list[Value]:
        """Block arguments for the carried values."""
        # The returned value is carried, too. It is no variable of the user's, so that it has no name in the IR.
        arguments = [Value(leaf.settled, "" if leaf.name == RETURNED else leaf.name) for leaf in self.carried]
        self._mark_weak(arguments)
        return arguments

    def _mark_weak(self, values: Sequence[Value]) -> None:
        """Note that carried weak scalars are weak in each iteration and after the loop."""
        for value, leaf in zip(values, self.carried, strict=True):
            if leaf.weak:
                of_weak(self.frame, value)

    def bind(self, values: Sequence[Any], *, inside: bool) -> None:
        """Let the variables mean `values`.

        Inside the loop, variables without a value before it have none yet. The carried value is hidden in them, for
        the merge with a branch that assigns them (`branches.py`).
        """
        rest = iter(values)
        for name, template in self.templates.items():
            items = [next(rest) if is_tile_or_number(leaf) else leaf for leaf in leaves(template)]
            filled = refill(template, iter(items))
            if self.forms.get(name):
                filled = put_together(self.frame, filled, name)
            fresh = name not in self.before or isinstance(self.before[name], Undefined)
            if inside and fresh:
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
        forms = dict(self.forms.get(name, {}))
        for k, (old, new) in enumerate(zip(old_tensors, new_tensors, strict=True)):
            if old is None or new is None or same_constant(old, new):
                continue
            known = old.template if isinstance(old, TensorParts) else old
            form = joined_form(known, new)
            if form is not None and isinstance(old, TensorParts):
                form = form.join(old.form)
            if form is None:
                return value  # they have no common form: the caller reports a changed type
            forms[k] = form
        if forms != self.forms.get(name, {}):
            if self.always:  # else the loop carries the variable, to pass on the value from before it
                self._drop(name)
            if name not in self.before:
                raise KernelTypeError(
                    f"{name!r} is a tensor of another form in each step of the loop, and has no value before it",
                    self.frame.locate(self.frame.places.get(name, self.node)),
                    f"Give {name!r} one of these tensors before the loop.",
                )
            self.forms[name] = forms
            # The new leaves take the place of the old ones: leaves are in the order of the templates.
            others, self.carried = self.carried, []
            self._carry(name, self.before[name])
            own, self.carried = self.carried, []
            for variable in self.templates:
                self.carried += own if variable == name else [leaf for leaf in others if leaf.name == variable]
            raise _CarriedChanged
        parts = iter(old_tensors)

        def in_parts(leaf: Any) -> Any:
            old = next(parts)
            if not isinstance(old, TensorParts) or not is_tensor(leaf):
                return leaf
            return TensorParts(old.form, old.template, tuple(parts_of(self.frame, leaf.value, old.form)))

        return mapped(value, in_parts)

    def _finish(self) -> list[Value] | None:
        taken = [exit for exit in (Exit.BREAK, Exit.RETURN) if exit in self.body_flow.taken]
        if taken != self.exits:  # `exits` was read from the syntax, which has branches that are never compiled
            self.exits = taken
            return None
        variables = self.frame.variables
        # Variables without a value before the loop that are carried all the same: code after it reads them.
        names = {name for loop, name in self.frame.compilation.passed_on if loop == id(self.node)}
        if Exit.RETURN in self.body_flow.taken:
            names.add(RETURNED)
        if missing := sorted(names - self.templates.keys()):
            for name in missing:
                # No path may reach the end of the body; the variable has no value there then.
                known = [variables.get(name, MISSING), *self.state.values(name, tuple(Exit))]
                known = [each for each in known if each is not MISSING and not is_undefined(each, name)]
                self._begin(name, known[0] if known else None)
            return None
        ends: list[Value | None] = []  # None: the leaf's type has changed
        rest = iter(self.carried)
        for name, template in self.templates.items():
            value = variables.get(name)
            if is_undefined(value, name) and value.hidden is not None:  # no path of the body assigned it
                value = value.hidden
            if isinstance(value, Faulty):  # reported already
                carried = filter(is_tile_or_number, leaves(template))
                ends += [self.frame.emit(zeros(next(rest).settled)) for _ in carried]
                continue
            if isinstance(value, Undefined) and value.conflict:
                self._drop_or_report_type(name, value.why, value.places)
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
        return values if len(values) == len(ends) else None

    def _end_of(self, name: str, leaf: _CarriedLeaf, old: Any, new: Any) -> Value | None:
        """The value of a leaf at the end of an iteration, as the leaf's type.

        Args:
            old: the leaf in the template.
            new: its value at the end of the body.

        Returns:
            None where the body gives another type. The leaf has that type from now on.
        """
        type = leaf.settled
        # A weak integer is an i32 or i64 in the IR, and converts to the leaf's type if that is one of them.
        whole = type in WHOLE and is_whole(self.frame, new)
        if whole and leaf.weak and type.dtype is not i64 and not interval_of(self.frame, new).fits(type.dtype):
            leaf.type = TileType(i64)  # an i32 may not hold the number
            return None
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

    def _constant(self, name: str) -> bool:
        """Whether a variable is the same constant wherever the loop ends.

        Then it is a constant after the loop, too. A loop that may not run also ends with the value from before it.
        """
        if name == RETURNED or name not in self.ends:
            return False
        end = self.ends[name]
        if isinstance(end, Undefined | Faulty) or not all(map(is_number, leaves(end))):
            return False
        return self.always or same_constants(end, self.before.get(name))

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

    def attempts(self, build: Callable[[list[Value]], Any], iteration: Callable[[], None]) -> Any:
        """Build the loop, again and again until its types settle.

        Args:
            build: makes the operation from the initial values. It gives None if types have changed.
            iteration: compiles one iteration with the variables as they are, to see which types numbers take.

        Returns:
            The operation; None if the user's errors in it were reported.
        """
        block, report = self.frame.builder.current, self.frame.report
        attempts = 0
        while attempts < MAX_ATTEMPTS + len(self.dropped) + len(self.carried):  # each may drop or change one variable
            attempts += 1
            length, mark = len(block.operations), report.mark()
            # An error may be the fault of a guessed type: meanwhile a full report does not end the compilation.
            has_guesses = self.has_guesses
            report.guesses += has_guesses
            try:
                result = build(self.start())
            except KernelError as error:
                if not has_guesses:
                    raise
                report.add(self._placed(error))
                result = FAULTY
            finally:
                report.guesses -= has_guesses
            failed = result is FAULTY or report.added != mark.added
            if result is not None and not failed:
                return result
            # Where the result is None, types have changed: the next build shows which errors are the user's. Elsewhere
            # all errors are the user's, unless a better guess of the types is found.
            if failed and result is not None and not (has_guesses and self._guess(block, iteration)):
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

    def _guess(self, block: Block, iteration: Callable[[], None]) -> bool:
        """Compile one iteration with compile-time numbers, to see their types after it.

        The operations of the iteration are deleted again. Returns whether some leaf has another type now.
        """
        self._guessed, learnt = True, False
        report = self.frame.report
        length, mark = len(block.operations), report.mark()
        self.reset()
        report.guesses += 1
        try:
            with self.frame.builder.block(), self.frame.dynamic():
                iteration()
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
            value.name = "" if leaf.name == RETURNED else leaf.name
        self._mark_weak(results)
        self.bind(results, inside=False)
        frame.variables.update({name: self.ends[name] for name in self.templates if self._constant(name)})
        frame.places.update({name: end_places[name] for name in self.templates if name in end_places})
        # A constant range whose iterations all leave it never comes to its end.
        endless = endless or (self.always and Exit.CONTINUE not in self.state.at)
        ends = () if endless else (Exit.CONTINUE,)
        # On the paths around `else`, a variable that is the same constant at every `break` is that constant.
        around = {name: value for name, value in self.state.constants.items() if name in self.templates}
        for name in self.assigned:
            if name in self.templates and not self._fresh(name):
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
        """The meaning after the loop of a variable that is `_fresh` or not carried.

        Args:
            end: its meaning at the end of the body; None where it has none.
            carried: the loop's result, if it carries the variable.
            exits: how the paths left the loop: by `break`, or by the end of the last iteration.
        """
        if isinstance(end, Faulty):
            return FAULTY
        before = self.before.get(name)
        if name in self.dropped and not self.always:
            places = [("in the loop it is assigned here", self.frame.locate(self.assigned[name]))]
            if (first := self.places.get(name)) is not None:
                places.insert(0, ("before the loop it is assigned here", self.frame.locate(first)))
            how = f"it is {describe(before)} before the loop in line {self._line}, {describe(end)} after an iteration"
            return Undefined(how, conflict=True, places=tuple(places))
        values = self.state.values(name, exits)
        if may_not_run := Exit.CONTINUE in exits and not self.always:
            values.append(MISSING if self._fresh(name) and getattr(before, "late", None) is None else before)
        if all(value is not MISSING for value in values):
            if name in self.templates:
                return carried
            # A use compiles the kernel again. An inner or an earlier loop has to pass the value on first.
            late = [value.late for value in values if isinstance(value, Undefined)]
            return Undefined("the loop does not pass it on", late=late[0] if late else self.node)
        how = "that may not run" if may_not_run else "not on every path"
        return Undefined(
            f"only the loop in line {self._line} assigns it, and {how}",
            places=(("it is assigned here", self.frame.locate(self.assigned[name])),),
        )

    def _fresh(self, name: str) -> bool:
        """Whether the variable has no value before the loop."""
        return name not in self.before or isinstance(self.before[name], Undefined | Faulty)
