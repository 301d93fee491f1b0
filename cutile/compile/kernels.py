"""`KernelCache`: a Python kernel with everything that was compiled of it, by specialization."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from cutile.backend.interface import CompileOptions, Target
from cutile.compile.driver import Compiled, Request, compile_kernel, render
from cutile.compile.memory import SingleFlight
from cutile.compile.specialize import Fact, TensorFacts, generic_values, specialize
from cutile.frontend.signature import read_signature
from cutile.frontend.source import take_source


class KernelCache:
    """One kernel: its source as it was when decorated, its signature, its compiled forms.

    Args:
        function: the Python function.

    Raises:
        KernelError: its source or signature cannot be understood.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.source = take_source(function)
        self.signature = read_signature(function, self.source)
        self._compiled: SingleFlight[Compiled] = SingleFlight()

    def generics(self, flat: Sequence[Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
        """Check and name the generics that a caller gave."""
        return generic_values(self.signature, flat, named)

    def request(
        self, facts: Sequence[Fact], generics: Mapping[str, Any], options: CompileOptions, target: Target
    ) -> Request:
        """What is to be compiled for arguments with these facts.

        Raises:
            ArgumentError, GenericsError: the arguments contradict the signature or the generics.
        """
        specialization = specialize(self.signature, facts, generics, options.max_divisibility)
        return Request(self.function, self.source, specialization, options, target)

    def compiled(
        self, facts: Sequence[Fact], generics: Mapping[str, Any], options: CompileOptions, target: Target
    ) -> Compiled:
        """The compiled kernel, from memory, from disk, or made now. A changed captured value compiles again."""
        key = self._key(facts, generics, options, target)
        found = self._compiled.get(key, lambda: compile_kernel(self.request(facts, generics, options, target)))
        if found.program.captures.unchanged():
            return found
        self._compiled.forget(key)
        return self._compiled.get(key, lambda: compile_kernel(self.request(facts, generics, options, target)))

    def _key(
        self, facts: Sequence[Fact], generics: Mapping[str, Any], options: CompileOptions, target: Target
    ) -> Hashable:
        """What distinguishes specializations in memory. Extents count only where the signature declares them."""
        classes: list[Hashable] = []
        for parameter, fact in zip(self.signature.parameters, facts, strict=True):
            if isinstance(fact, TensorFacts):
                layout = fact.layout(options.max_divisibility)
                shape = fact.shape if parameter.extents is not None else None
                classes.append((fact.dtype, layout, fact.tile, shape))
        return (tuple(classes), tuple(generics.items()), options, target)

    def render(
        self,
        facts: Sequence[Fact],
        generics: Mapping[str, Any],
        options: CompileOptions,
        target: Target,
        stage: str,
    ) -> str:
        """The text of one stage of the compilation."""
        return render(self.request(facts, generics, options, target), stage)

    def __len__(self) -> int:
        return len(self._compiled)
