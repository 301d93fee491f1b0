"""`KernelCache`: a Python kernel with its compiled forms, by specialization.

In memory each form is compiled once, however many threads ask for it at the same time.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from cuda_async.errors import ReentrancyError
from cuda_async.locks import Gate, new_lock
from cutile.backend.interface import DEFAULT_OPTIONS, Change, CompileOptions, Executable, Target
from cutile.compile.declared import DEFAULT_DECLARED, Declared, cap_alignment
from cutile.compile.driver import Compiled, Request, compile_kernel, render
from cutile.compile.facts import Fact, generics_key
from cutile.compile.specialize import Specialization, generic_values, specialize
from cutile.errors import KernelError, hide_own_frames
from cutile.frontend.signature import Signature, read_signature, refuse_pointers
from cutile.frontend.source import as_it_is, take_source

if TYPE_CHECKING:
    from cutile.interpreter.run import Interpreted

V = TypeVar("V")
_flights: weakref.WeakSet[SingleFlight[Any]] = weakref.WeakSet()  # all of them, for a forked child


def _after_fork_in_child() -> None:
    for flight in list(_flights):
        flight.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)


class _Entry(Generic[V]):
    """A value that one thread makes and others may wait for.

    Not a `concurrent.futures.Future`: to import that takes longer than to launch a compiled kernel.
    """

    __slots__ = ("_gate", "_maker", "done", "error", "value")

    def __init__(self) -> None:
        self._gate = Gate()
        self._maker = threading.get_ident()
        self.done = False
        self.value: V | None = None
        self.error: BaseException | None = None

    def settle(self, value: V | None, error: BaseException | None = None) -> None:
        """Set the value or the error, and let the waiting threads go on."""
        self.value, self.error, self.done = value, error, True  # `done` last: it is read without a lock
        self._gate.open()

    def result(self) -> V:
        """Wait for the value. Raises the error where making it failed.

        Raises:
            ReentrancyError: this thread makes the value, and would wait for itself.
        """
        if not self.done:
            if self._maker == threading.get_ident():
                raise ReentrancyError(
                    "a kernel was used by a signal's handler, or by a finalizer, amid its own compilation on this "
                    "thread: run it once before, or have the handler set a flag and run it later"
                )
            try:
                self._gate.wait()
            finally:
                if self.done:
                    self._gate.open()  # for the next waiter: a gate lets one through
        if self.error is not None:
            raise self.error
        return cast("V", self.value)


class SingleFlight(Generic[V]):
    """A dictionary that makes missing values, each once.

    An error of making one is raised in all threads that wait for it, and forgotten: the next `get` makes it again.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._entries: dict[Hashable, _Entry[V]] = {}
        _flights.add(self)

    def after_fork(self) -> None:
        """Forget, in a forked child, the values that other threads were making.

        The child does not have these threads.
        """
        self._lock = new_lock()
        self._entries = {key: entry for key, entry in self._entries.items() if entry.done}

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of `key`. One thread calls `make`, and others wait for its result."""
        entry = self._entries.get(key)  # without the lock, as most often
        if entry is not None:
            return entry.result()
        with self._lock:
            entry = self._entries.get(key)
            is_maker = entry is None
            if entry is None:
                entry = self._entries[key] = _Entry()
        if not is_maker:
            return entry.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                self._entries.pop(key, None)
            entry.settle(None, error)
            raise
        entry.settle(value)
        return value

    def peek(self, key: Hashable) -> V | None:
        """The value of `key`, if it has been made; else None."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and entry.done else None

    def ready(self) -> list[V]:
        """All values that have been made."""
        return [entry.result() for entry in list(self._entries.values()) if entry.done and entry.error is None]

    def forget(self, key: Hashable) -> None:
        """Drop a key."""
        with self._lock:
            self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)


class Plan:
    """A specialized kernel: checked once, compiled once for each target.

    Args:
        kernel: the kernel.
        specialization: its types and constants.
        options: the launch's options.
        change: changes of these options, for a variant; see `Loaded.variants`.

    Attributes:
        memo: values that launches work out once, by device.
    """

    def __init__(
        self, kernel: KernelCache, specialization: Specialization, options: CompileOptions, change: Change = ()
    ) -> None:
        self._kernel = kernel
        self.specialization = specialization
        self._options = options
        self._change = change
        self._variants: dict[Change, Plan] = {}
        self._compiled: SingleFlight[Compiled] = SingleFlight()
        self.memo: dict[Any, Any] = {}
        self._executables: dict[str, Executable] = {}  # of which `render` shows something, by cache key
        self._last: tuple[Target, Compiled] | None = None  # most launches have the target object of the last one

    def request(self, target: Target) -> Request:
        """The request to compile for a target."""
        kernel, specialization = self._kernel, self.specialization
        options = kernel.declared.options(self._options, target)
        if options.max_divisibility < self._options.max_divisibility:  # hints of the target allow less
            specialization = cap_alignment(specialization, options)
        if self._change:
            options = replace(options, **dict(self._change))
        return Request(kernel.function, kernel.source, specialization, options, target, kernel.declared)

    def variant(self, change: Change) -> Plan:
        """This plan with some options changed; itself if `change` is empty."""
        if not change:
            return self
        plan = self._variants.get(change)
        if plan is None:
            plan = Plan(self._kernel, self.specialization, self._options, change)
            plan = self._variants.setdefault(change, plan)  # another thread's, if it was faster
        return plan

    def interpreted(self) -> Interpreted:
        """The kernel as plain Python, for `CUTILE_INTERPRET` and `.interpret()`."""
        from cutile.interpreter.run import Interpreted  # few launches need it, and each import delays every first one

        kernel, specialization = self._kernel, self.specialization
        unsafe = kernel.declared.unsafe
        return Interpreted(
            kernel.function,
            kernel.source,
            specialization.parameters,
            specialization.generics,
            pointers=specialization.pointers,
            arrangement=specialization.arrangement,
            unsafe=unsafe,
        )

    def compiled(self, target: Target) -> Compiled:
        """The compiled kernel, from memory, from disk, or compiled now.

        It is compiled again after a captured value has changed.

        Raises:
            KernelError: the kernel does not compile; shows the place.
            CompilationError: the toolchain refused the generated code.
        """
        last = self._last
        if last is not None and last[0] is target and last[1].program.captures.unchanged():
            return last[1]
        try:
            compiled = self._compiled.get(target, lambda: compile_kernel(self.request(target)))
            if not compiled.program.captures.unchanged():
                self._compiled.forget(target)
                compiled = self._compiled.get(target, lambda: compile_kernel(self.request(target)))
        except KernelError as error:  # its text shows the place in the kernel
            hide_own_frames(error)
            raise
        self._last = (target, compiled)  # one tuple, so that threads never see one's target with another's kernel
        return compiled

    def is_compiled(self, target: Target) -> bool:
        """Whether a launch for this target would not have to compile."""
        compiled = self._compiled.peek(target)
        return compiled is not None and compiled.program.captures.unchanged()

    def ready(self) -> list[Compiled]:
        """All compiled forms in memory, for every target and of every variant."""
        plans = [self, *list(self._variants.values())]
        return [compiled for plan in plans for compiled in plan._compiled.ready()]

    def render(self, target: Target, stage: str) -> str:
        """The text of one stage of the compilation."""
        compiled = self._compiled.peek(target)
        if compiled is not None:
            self._executables[compiled.key] = compiled.executable
        try:
            return render(self.request(target), stage, self._executables)
        except KernelError as error:
            hide_own_frames(error)
            raise

    def __len__(self) -> int:
        return len(self._compiled) + sum(map(len, self._variants.values()))


_options: dict[CompileOptions, object] = {}
"""An object for each set of options, which stands for the set in keys: to hash all fields takes long."""


def plan_key(generics: Mapping[str, Any], options: CompileOptions) -> tuple[Hashable, ...]:
    """The item of a plan's key for generics and options; empty if a launch gives none."""
    if not generics and options is DEFAULT_OPTIONS:  # `is`: most launches have this very object
        return ()
    token = _options.get(options)
    return (*generics_key(generics), _options.setdefault(options, object()) if token is None else token)


class KernelCache:
    """A kernel: its source when decorated, its signature, its specializations.

    Args:
        function: the Python function. A copy is kept, whose code stays as it is.
        declared: the keywords of `@entry`.

    Attributes:
        arranged: this kernel for arguments that are groups of tensors, by the structure of the groups.
        plans: the specialized kernels. Their keys have an item for each tensor: its layout class, or its facts where
            the signature declares extents. Generics and options follow, where a launch gives some.

    Raises:
        KernelError: its source or signature cannot be understood.
    """

    def __init__(self, function: Callable[..., Any], declared: Declared = DEFAULT_DECLARED) -> None:
        self.declared = declared
        self.source = take_source(function)
        self.function = as_it_is(function)
        self._begin(read_signature(function, self.source))

    def _begin(self, signature: Signature) -> None:
        self.signature = signature
        if not self.declared.unsafe:
            refuse_pointers(signature)
        declaring = tuple(each.declares for each in signature.parameters)
        self._declaring = declaring if any(declaring) else ()
        self.plans: dict[Hashable, Plan] = {}
        self.arranged: dict[Hashable, KernelCache] = {}

    def arrange(self, key: Hashable, signature: Callable[[], Signature]) -> KernelCache:
        """This kernel for arguments of one structure.

        Args:
            key: the structure.
            signature: makes the signature, whose launch parameters are the parts of the groups.
        """
        cache = self.arranged.get(key)
        if cache is None:
            kernel = KernelCache.__new__(KernelCache)  # not by `__init__`, which would read the function again
            kernel.declared, kernel.source, kernel.function = self.declared, self.source, self.function
            kernel._begin(signature())
            cache = self.arranged.setdefault(key, kernel)
        return cache

    def generics(self, flat: Sequence[Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
        """Check and name the generics that a caller gave."""
        return generic_values(self.signature, flat, named)

    def plan(self, facts: Sequence[Fact], generics: Mapping[str, Any], options: CompileOptions) -> Plan:
        """The plan for arguments with these facts, which are checked the first time.

        Raises:
            ArgumentError, GenericsError: the arguments contradict the signature or the generics.
        """
        if self._declaring:  # extents count only where the signature declares some
            classes: list[Hashable] = [
                fact if declares else fact[0]
                for declares, fact in zip(self._declaring, facts, strict=True)
                if fact is not None
            ]
        else:
            classes = [fact[0] for fact in facts if fact is not None]
        key = (*classes, plan_key(generics, options))
        plan = self.plans.get(key)
        if plan is None:
            specialization = specialize(self.signature, facts, generics, options.max_divisibility)
            plan = self.plans.setdefault(key, Plan(self, specialization, options))
        return plan

    def compiled(self) -> list[Compiled]:
        """All compiled forms that are in memory."""
        own = [compiled for plan in list(self.plans.values()) for compiled in plan.ready()]
        return own + [compiled for kernel in list(self.arranged.values()) for compiled in kernel.compiled()]

    def __len__(self) -> int:
        return sum(len(plan) for plan in self.plans.values()) + sum(map(len, self.arranged.values()))
