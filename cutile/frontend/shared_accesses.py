"""The proof that plain accesses of a `SharedMut` meet no other tile block's.

A plain store is accepted where no two tile blocks can name one element: then every access of that tensor lies in
elements that one block owns. Atomic updates may name any element. This is decided on the IR as written, so
that an error shows the line.

A block owns the elements at a multiple of its index, or at a number that it has claimed by an atomic addition:

    part.store(t, (block, 0))                       tile `block` of the first axis
    for i in range(block, n, num_blocks): ...       every `num_blocks`-th tile
    place = ct.atomic_add(counter, 0, 1)            a number that nobody else gets
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.errors import KernelTypeError
from cutile.frontend.index_forms import Form, Forms, Symbol
from cutile.frontend.plain_numbers import Interval
from cutile.ir import Effect, Function, Op, TensorType, Value
from cutile.ops.arith import And
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.bound import CheckIndex, CheckTile
from cutile.ops.memory import LoadTile, TensorDim
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress, TensorStride
from cutile.ops.view import LoadView, StoreView

_WHOLE_SENTENCE = -2
"""In the place of the axis in a launch check (`passes/bounds.py`): the check's name is the whole text of its error."""


@dataclass(frozen=True)
class Reached:
    """Elements that are reached by address.

    Attributes:
        tensor: the tensor of the elements.
        base: the tensor's address.
        index: one tile of i64 for each axis; they broadcast.
        mask: the mask that the kernel gave; None for all lanes.
    """

    tensor: Value
    base: Value
    index: tuple[Value, ...]
    mask: Value | None


def is_shared(value: Value, parameters: Sequence[Value]) -> bool:
    """Whether a tensor is a `SharedMut` parameter."""
    return isinstance(value.type, TensorType) and not value.type.stable and value in parameters


def check_shared(function: Function, reached: Mapping[Value, Reached], weak: Mapping[Value, Interval | None]) -> None:
    """Refuse plain accesses that may meet another tile block's.

    The fact `launch_checks` gets the conditions that only a launch can check.

    Args:
        function: the kernel as written.
        reached: the elements behind the pointers of accesses by address.
        weak: the intervals of weak scalars, which cannot wrap.

    Raises:
        KernelTypeError: with the line of an access, and the remedy.
    """
    tensors = [value for value in function.parameters if is_shared(value, function.parameters)]
    if not tensors:
        return
    proof = _Proof(function, reached, weak)
    for tensor in tensors:
        proof.check(tensor)
    if proof.checks:
        function.facts["launch_checks"] = tuple(dict.fromkeys(proof.checks))


@dataclass(frozen=True)
class _Access:
    """One access of a shared tensor.

    Attributes:
        writes: whether it may change elements.
        atomic: whether it may meet other atomic accesses.
        forms: the index along each axis; None where nothing is known of it.
        mask: the mask that the kernel gave.
    """

    op: Op
    writes: bool
    atomic: bool
    forms: tuple[Form | None, ...] | None
    mask: Value | None = None


class _Proof:
    """The accesses of one kernel, and the conditions under which they keep apart."""

    def __init__(
        self, function: Function, reached: Mapping[Value, Reached], weak: Mapping[Value, Interval | None]
    ) -> None:
        self._function = function
        self._reached = reached
        self._operations = list(function.walk())
        self._made_by = {value: op for op in self._operations for value in op.results}
        self._keys: dict[Value, int] = {}
        self._expressions: dict[Any, int] = {}  # the number of each expression (`_key`)
        self._forms = Forms(function, weak, self._counter)
        self._accesses: dict[Value, list[_Access]] = {}
        # Each is a `LaunchCheck` of `passes/bounds.py`.
        self.checks: list[tuple[str, int, int, str, str, str, tuple[str, ...], str]] = []

    def check(self, tensor: Value) -> None:
        """Check the accesses of one tensor. Raises KernelTypeError."""
        accesses = self.accesses(tensor)
        plain = [each for each in accesses if not each.atomic]
        if not any(each.writes for each in accesses) or not plain:
            return
        first = next((each for each in plain if each.writes), plain[0])
        why = self._separated(tensor, accesses, first)
        if why:
            self._refuse(tensor, first, accesses, why)

    def accesses(self, tensor: Value) -> list[_Access]:
        """Every access of a tensor, in program order."""
        if tensor not in self._accesses:
            self._accesses[tensor] = [each for op in self._operations for each in self._accesses_of(op, tensor)]
        return self._accesses[tensor]

    # Accesses

    def _accesses_of(self, op: Op, tensor: Value) -> Iterator[_Access]:
        """The accesses of a tensor that one operation makes."""
        match op:
            case LoadPointer() | StorePointer() | AtomicRmw() | AtomicCas():
                place = self._reached.get(op.pointers)
                if place is not None and place.tensor is tensor:
                    atomic = op.order != "weak" and op.scope != "tile_block"
                    forms = tuple(self._forms.of(each) for each in place.index)
                    yield _Access(op, not isinstance(op, LoadPointer), atomic, forms, place.mask)
            case LoadTile() | LoadView() | StoreView() if op.x is tensor:
                shape = op.value.tile.shape if isinstance(op, StoreView) else op.shape
                steps = shape if isinstance(op, LoadTile) else op.steps
                starts = op.index if isinstance(op, LoadTile) else op.starts
                tiles = zip((self._forms.of(each) for each in starts), steps, shape, strict=True)
                forms = tuple(None if form is None else form.times(step).up_to(size) for form, step, size in tiles)
                yield _Access(op, isinstance(op, StoreView), False, forms)
            case TensorAddress() if op.x is tensor:
                # An address may lead anywhere, unless it is the base of known elements. A slice's address is no base.
                if not any(place.base is op.result for place in self._reached.values()):
                    yield _Access(op, True, False, None)
            case TensorDim() | TensorStride() | CheckTile() | CheckIndex():
                pass
            case _:
                if not op.regions and tensor in op.operands:
                    yield _Access(op, op.effect is not Effect.READ, False, None)

    # Claims

    def _counter(self, op: AtomicRmw) -> str | None:
        """The counter from which an update takes a number that nobody else gets.

        None for any other update.
        """
        place = self._reached.get(op.pointers)
        if place is None or self._counter_gap(place.tensor) is None:
            return None
        return place.tensor.name

    def _counter_gap(self, tensor: Value) -> int | None:
        """The least difference of two numbers that a counter gives; None for no counter.

        A tensor is a counter if all accesses atomically add positive constants to its first element.
        """
        gap: int | None = None
        for access in self._accesses_of_counter(tensor):
            op = access.op
            if not isinstance(op, AtomicRmw) or op.kind != "add" or not access.atomic or access.forms is None:
                return None
            value = self._forms.of(op.value)
            if any(form is None or form.constant != 0 for form in access.forms):
                return None
            if value is None or value.constant is None or value.constant < 1:
                return None
            gap = value.constant if gap is None else min(gap, value.constant)
        return gap

    def _accesses_of_counter(self, tensor: Value) -> list[_Access]:
        return self.accesses(tensor) if is_shared(tensor, self._function.parameters) else []

    def _conjuncts(self, mask: Value | None) -> set[Any]:
        """The keys of the masks that a mask joins by `&`; else the mask's own."""
        leaves: set[Any] = set()
        pending, seen = [mask] if mask is not None else [], {mask}
        while pending:
            value = pending.pop()
            op = self._made_by.get(value)
            if not isinstance(op, And):
                leaves.add(self._key(value))
                continue
            parts = {op.x, op.y} - seen
            pending += parts
            seen |= parts
        return leaves

    def _key(self, value: Value) -> int:
        """A number that stands for an expression.

        Expressions with the same operations on the same values share it.
        """
        if value not in self._keys:
            op = self._made_by.get(value)
            expression: Any = value
            if op is not None and op.effect is Effect.NONE and not op.regions and len(op.results) == 1:
                expression = op.name, value.type, repr(op.attributes), *(self._key(each) for each in op.operands)
            self._keys[value] = self._expressions.setdefault(expression, len(self._expressions))
        return self._keys[value]

    def _claimed(self, symbol: Symbol, form: Form, access: _Access) -> bool:
        """Whether each lane of an access has claimed its number.

        A lane that was masked off in the claim has no number, so that the access must mask it off, too.
        """
        for op in self._operations:
            if isinstance(op, AtomicRmw) and self._counter(op) == symbol[1]:
                place = self._reached[op.pointers]
                lanes = self._conjuncts(place.mask)
                if lanes and (form.moved or not lanes <= self._conjuncts(access.mask)):
                    return False
        return True

    # The proof

    def _separated(self, tensor: Value, accesses: Sequence[_Access], first: _Access) -> str:
        """The reason why two tile blocks may meet; "" where they cannot."""
        axes: set[int] = set()
        why = ""
        for axis in range(tensor.tensor.rank):
            outcome = self._separator(axis, accesses)
            if isinstance(outcome, str):
                why = why or outcome
            elif outcome[0] == "claim":
                return ""  # no two of all tile blocks have one number
            else:
                axes.add(outcome[1])
        if not axes:
            return why
        name = tensor.name
        place = first.op.location.of_user().show() if first.op.location is not None else ""
        # Tile blocks that differ only along another axis of the grid would meet. The launch checks that there are none.
        for axis in sorted({0, 1, 2} - axes):
            sentence = (
                f"{name!r} is written by a plain store whose index does not tell tile blocks along axis {axis} of the "
                f"grid apart; launch a grid with one block along that axis, or count it in the index"
            )
            self.checks.append((sentence, _WHOLE_SENTENCE, 0, "", f"grid[{axis}] - 1", "1", (), place))
        return ""

    def _separator(self, axis: int, accesses: Sequence[_Access]) -> tuple[Any, ...] | str:
        """The number that keeps two tile blocks' accesses apart along a tensor's axis.

        Returns:
            ("block", axis of the grid) or ("claim", counter). A text is the reason why no number does.
        """
        kind: tuple[Any, ...] | None = None
        common: tuple[Any, int, Any] | None = None
        low, high = 0, 0
        for access in accesses:
            form = None if access.forms is None else access.forms[axis]
            if form is None:
                return f"along axis {axis}, an index is no multiple of the tile block's index plus constants"
            own = [(symbol, factor) for symbol, factor in form.terms if symbol[0] != "same"]
            rest = tuple((symbol, factor) for symbol, factor in form.terms if symbol[0] == "same")
            if not own:
                return f"along axis {axis}, an index is the same in every tile block"
            if len(own) > 1:
                return f"along axis {axis}, an index adds up several numbers that differ between tile blocks"
            symbol, factor = own[0]
            kind = ("claim", symbol[1]) if symbol[0] == "claim" else ("block", symbol[1])
            if kind[0] == "claim" and not self._claimed(symbol, form, access):
                return "a lane that has claimed no number is not masked off"
            if form.narrow and not self._fits(symbol, factor, form, access):
                return f"along axis {axis}, an index may wrap: it is multiplied in 32 bits"
            if common is None:
                common, low, high = (kind, factor, rest), form.low, form.high
            if common != (kind, factor, rest):
                return f"along axis {axis}, two accesses have different indices"
            low, high = min(low, form.low), max(high, form.high)
        assert kind is not None
        assert common is not None
        gap = self._least_difference(kind)
        if high - low >= abs(common[1]) * gap:
            between = abs(common[1]) * gap
            return (
                f"along axis {axis}, {high - low + 1} elements are reached, and {between} "
                f"{'lies' if between == 1 else 'lie'} between one tile block's first and the next one's"
            )
        return kind

    def _least_difference(self, kind: tuple[Any, ...]) -> int:
        if kind[0] != "claim":
            return 1
        counter = next(value for value in self._function.parameters if value.name == kind[1])
        return self._counter_gap(counter) or 0

    def _fits(self, symbol: Symbol, factor: int, form: Form, access: _Access) -> bool:
        """Whether a product in 32 bits does not wrap, if a new launch check holds."""
        most = self._forms.upper_bound(symbol)
        if most is None or any(other[0] == "same" for other, _ in form.terms):
            return False
        place = access.op.location.of_user().show() if access.op.location is not None else ""
        sentence = (
            "an index, which is multiplied in 32 bits, may become too large for them; convert one factor: "
            "ct.convert_tile(..., ct.i64)"
        )
        highest = f"{abs(factor)} * {most} + {max(abs(form.low), abs(form.high))}"
        self.checks.append((sentence, _WHOLE_SENTENCE, 0, "", highest, f"{2**31}", (), place))
        return True

    def _refuse(self, tensor: Value, first: _Access, accesses: Sequence[_Access], why: str) -> None:
        name = tensor.name
        if first.forms is None:
            what = f"{name!r} is a SharedMut, and accesses of what is made of it here cannot be followed"
            remedy = (
                "Load its tiles from a partition of it; name its elements in ct.gather, ct.scatter and ct.atomic_add."
            )
        elif first.writes:
            what = f"nothing shows that no two tile blocks meet at one element of {name!r}: {why}"
            remedy = (
                f"Update it atomically, as in ct.atomic_add({name}, index, value); index it with the tile block's "
                "index, or with what ct.atomic_add of a counter gives."
            )
        else:
            what = f"a plain load of {name!r} may meet another tile block's atomic update: {why}"
            remedy = (
                f"Read it atomically: ct.atomic_add({name}, index, 0), or ct.load_view_tko(part, index, "
                "ct.ordering.RELAXED)."
            )
        others = [each for each in accesses if each is not first and each.op.location != first.op.location]
        places = tuple(
            (f"{name!r} is {'written' if each.writes else 'read'} here", each.op.location)
            for each in others[:2]
            if each.op.location is not None
        )
        raise KernelTypeError(
            f"{self._function.name}: {what}",
            first.op.location,
            f"{remedy} Or take it on yourself: @ct.entry(unsafe=True).",
            places,
        )
