"""The compilation of a kernel, from source to `Loaded`.

source -> IR -> neutral passes -> key -> disk cache -> lower -> emit -> build -> disk cache -> load

If a kernel spills registers, its backend's `attempts` are built too. If it still spills, a `SpillWarning` says so.
"""

from __future__ import annotations

import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from cuda_async.locks import new_lock
from cutile import config
from cutile.backend.interface import DEFAULT_OPTIONS, Backend, CompileOptions, Executable, Loaded, Source, Target
from cutile.backend.registry import backend, title_of
from cutile.compile.declared import DEFAULT_DECLARED, Declared
from cutile.compile.facts import WIDEST
from cutile.compile.key import cache_key
from cutile.compile.specialize import Specialization
from cutile.compile.store import disk_store
from cutile.config import Config
from cutile.errors import ArgumentError, KernelError, KernelTypeError, SpillWarning
from cutile.frontend.build import Program, build
from cutile.frontend.inline import may_store
from cutile.frontend.source import FunctionSource
from cutile.installation import advice, missing, smells_of_installation
from cutile.ir import Effect, Function, MutType, TensorType, Value
from cutile.ir.text import print_function
from cutile.ir.verify import verify
from cutile.passes.pipeline import run_passes

# Dumps and plans: a kernel's stages as text.
#
# Stages that `CUTILE_DUMP` names are printed to stderr or written into files. The plan is a head, which names the
# target and the options, and the rows in which the backend explains the kernel.

WIDTH = 118  # characters of a plan's lines
HEADING = 16  # characters of the column of headings


def plan_text(
    function: Function, target: Target, options: CompileOptions, facts: Mapping[str, Any], unread: Sequence[str] = ()
) -> str:
    """A kernel's plan: a head, then a heading and a text on each line.

    Args:
        function: the kernel's IR as written, which has the parameters.
        target: the target that it is compiled for.
        options: the options of the launch.
        facts: the facts of the kernel's `Source` or `Executable`.
        unread: a line for each option that the target does not read.
    """
    rows = [("types", types_text(function))]
    rows += [*backend(target.backend).explain(facts, target)]
    rows += [("not used", line) for line in unread]
    rows += [("toolchain", str(facts["toolchain"]))] if "toolchain" in facts else []
    lines = [f"{function.name} for {title_of(target)}{_changed_options(options)}"]
    previous = ""
    for heading, text in rows:
        title = heading if heading != previous else ""  # rows of one heading: only the first shows it
        previous = heading
        # An empty text has no lines, but still a heading.
        first, *more = textwrap.wrap(text, WIDTH - HEADING - 2, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"  {title:{HEADING}}{first}".rstrip())
        lines += [f"  {'':{HEADING}}  {each}" for each in more]
    return "\n".join(lines)


def types_text(function: Function) -> str:
    """A kernel's parameters, for people: `y f32[?] in tiles of 256; a f32`."""
    return "; ".join(_parameter_text(each) for each in function.parameters)


def _parameter_text(value: Value) -> str:
    """A parameter's name and type.

    Strides and alignment are told only where they differ from those of contiguous, aligned rows.
    """
    kind = value.type
    tensor = kind.tensor if isinstance(kind, MutType) else kind
    if not isinstance(tensor, TensorType):
        return f"{value.name} {kind}"
    extents = ", ".join("?" if extent is None else str(extent) for extent in tensor.shape)
    text = f"{value.name} {tensor.dtype}[{extents}]"
    if tensor.shape and tensor.strides[-1] != 1:
        text += f" with strides ({', '.join('?' if each is None else str(each) for each in tensor.strides)})"
    if tensor.alignment < WIDEST:
        text += f" aligned to {tensor.alignment}"
    return f"{text} in tiles of {' x '.join(map(str, kind.tile))}" if isinstance(kind, MutType) else text


def without_toolchain(facts: Mapping[str, Any], name: str, error: ImportError) -> dict[str, Any]:
    """The facts of a source that was not built, and why there is no toolchain.

    Registers and spills are not counted, so the number of warps is not final.

    Args:
        facts: the facts of the source.
        name: the backend's name.
        error: the error of building.
    """
    missing_needs = missing(name)
    names = ", ".join(each.distribution for each in missing_needs)
    # An extra brings cutile's own requirements as well, so one remedy is enough.
    need = next((each for each in missing_needs if each.extra), next(iter(missing_needs), None))
    reason = f"without {names}; {need.remedy}" if need is not None else f"{error}; `python -m cutile info` says more"
    warps = facts.get("more_warps")
    warps_note = f" ({warps} warps are taken where {facts['warps']} spill)" if warps else ""
    return {**facts, "toolchain": f"registers and spills are not counted{warps_note}: {reason}"}


def _changed_options(options: CompileOptions) -> str:
    """The options that differ from their defaults, as a user writes them."""
    texts = [
        f"{each.name}={getattr(options, each.name)!r}"
        for each in fields(options)
        if getattr(options, each.name) != getattr(DEFAULT_OPTIONS, each.name)
    ]
    return f", {', '.join(texts)}" if texts else ""


_SUFFIX = {"source": "py", "log": "txt"}


class Dump:
    """Shows the stages of one compilation that the settings name.

    Args:
        settings: the stages, and the folder for them; without a folder they are printed to stderr.
        kernel: the kernel's name. In a folder, a later compilation of the name replaces the files.
    """

    def __init__(self, settings: Config, kernel: str) -> None:
        self._settings = settings
        self._kernel = kernel

    def wants(self, stage: str) -> bool:
        """Whether the settings name a stage."""
        return stage in self._settings.dump

    def ir(self, stage: str, function: Function) -> None:
        """Show a function."""
        if self.wants(stage):
            self.text(stage, print_function(function))

    def text(self, stage: str, text: str) -> None:
        """Show a text."""
        if not self.wants(stage):
            return
        folder = self._settings.dump_directory
        if folder is None:
            print(f"--- {self._kernel}: {stage}\n{text}", file=sys.stderr)
            return
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self._kernel}.{stage}.{_SUFFIX.get(stage, 'ir')}").write_text(text, encoding="utf-8")


_warned: set[str] = set()  # cache keys
_lock = new_lock()  # of `_warned`


def warn_of_spills(
    source: FunctionSource, facts: Mapping[str, Any], options: CompileOptions, arch: str, key: str, types: str
) -> None:
    """Warn once for each specialization that a kernel spills, with remedies.

    Args:
        source: the kernel's source.
        facts: the facts of its `Executable`.
        options: the options that it was compiled with.
        arch: the architecture.
        key: the cache key, which tells specializations apart.
        types: the parameters' types, for people.
    """
    spills = int(facts.get("spills", 0))
    if not spills:
        return
    with _lock:
        if key in _warned:
            return
        _warned.add(key)
    place = source.locate(source.tree)
    text = (
        f"kernel {source.name!r} ({types}): its tiles do not fit into the {facts.get('registers')} registers of each "
        f"of {facts.get('threads')} threads on {arch}; {spills} bytes of each thread's are kept in memory, which is "
        f"slow. Use {'; or '.join(_remedies(facts, options))}."
    )
    # At the kernel's own line: the caller's would be any launch.
    warnings.warn_explicit(text, SpillWarning, place.file or "<kernel>", place.line)


def _remedies(facts: Mapping[str, Any], options: CompileOptions) -> list[str]:
    """Changes by which a thread would hold fewer values."""
    remedies = ["smaller tiles"]
    warps, products = int(facts.get("warps", 0)), sum(row[0] == "products" for row in facts.get("plan", ()))
    if options.num_worker_warps is not None:
        remedies.append(f"more than num_worker_warps={options.num_worker_warps}, or none given")
    elif warps and "computing" not in facts:  # with warp specialisation the tile's rows decide the number of warps
        remedies.append(f"more warps, which share a tile ({warps} here): CompileOptions(num_worker_warps={2 * warps})")
    if options.occupancy is not None:
        remedies.append(f"less than occupancy={options.occupancy}, or none given")
    if products > 1:
        remedies.append(f"fewer accumulators at a time ({products} products here)")
    return remedies


@dataclass(frozen=True)
class Request:
    """A kernel to be compiled.

    Attributes:
        function: the Python function, for its globals and its closure.
        source: its source text, taken when it was decorated.
        specialization: types of the parameters, and values of the generics.
        options: the options of the launch.
        target: the target.
        declared: the keywords of `@entry`.
    """

    function: Callable[..., Any]
    source: FunctionSource
    specialization: Specialization
    options: CompileOptions
    target: Target
    declared: Declared = DEFAULT_DECLARED

    def as_compiled(self) -> Request:
        """The request with only the options that its target reads.

        Launches that differ in other options share a kernel.
        """
        return replace(self, options=self.options.only(backend(self.target.backend).options))

    @property
    def unread(self) -> list[str]:
        """A line for each option of the launch that its target does not read."""
        options, options_read = self.options, self.as_compiled().options
        return [
            f"{each.name}={getattr(options, each.name)!r}: {title_of(self.target)} has no use for it"
            for each in fields(options)
            if getattr(options, each.name) != getattr(options_read, each.name)
        ]


@dataclass(frozen=True)
class Compiled:
    """A kernel that can be launched, and a record of its compilation.

    Attributes:
        loaded: the loaded kernel, which launches it.
        executable: machine code as data.
        program: the IR as written, with the captured names that were compiled in.
        key: the cache key.
        from_disk: whether the machine code came from the disk cache.
        seconds: the time of each phase.
        facts: the facts of the optimised IR, with the preconditions that a launch verifies. Those of the machine code,
            such as its registers, are `executable.facts`.
        memo: values that launches work out once.
        options: the options that it was compiled with.
    """

    loaded: Loaded[Any]
    executable: Executable
    program: Program
    key: str
    from_disk: bool
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    memo: dict[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)
    options: CompileOptions = DEFAULT_OPTIONS

    @property
    def plan(self) -> str:
        """The plan in words."""

        return plan_text(self.program.function, self.executable.target, self.options, self.executable.facts)


class _Clock:
    """Adds up the seconds of phases; each lap ends one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


def front(request: Request) -> Program:
    """The IR as written.

    Raises:
        KernelSyntaxError, KernelNameError, KernelTypeError: with the place in the user's source.
    """
    specialization = request.specialization
    try:
        program = build(
            request.function,
            request.source,
            specialization.parameters,
            specialization.generics,
            unsafe=request.declared.unsafe,
            pointers=specialization.pointers,
            arrangement=specialization.arrangement,
        )
    except KernelError as error:  # without the compiler's frames: its text shows the place in the kernel
        raise error.with_traceback(None) from error.__cause__
    request.declared.rules.write_facts(program.function, specialization.generics, force=config.load().force_checks)
    writes = any(op.effect >= Effect.WRITE for op in program.function.body.operations)
    if not writes and not may_store(request.function, request.source):
        raise KernelTypeError(
            f"kernel {request.source.name!r} stores nothing, so it has no effect",
            request.source.locate(request.source.tree),
            "Store a tile into a Mut parameter: y.store(tile).",
        )
    return program


def lower(request: Request, function: Function, check: bool, prove: bool = False) -> Function:
    """The IR after the target's own passes.

    With `check` it is verified, with `prove` also by the target's models.
    """
    return _lowered(function, request.target, request.options, check, prove)


def _lowered(function: Function, target: Target, options: CompileOptions, check: bool, prove: bool) -> Function:
    compiler = backend(target.backend)
    lowered = compiler.lower(function, target, options)
    if check:
        verify(lowered)
    if prove:
        compiler.prove(lowered)
    return lowered


built_ahead: dict[str, Executable] = {}
"""Executables by cache key that other processes built, if no disk cache passes them on. A compilation removes its own.
"""


def compile_kernel(request: Request) -> Compiled:
    """Compile, or take from the disk cache, and load.

    Raises:
        KernelError: the kernel does not compile; shows the place.
        CompilationError: the toolchain refused the generated code.
    """
    unread, request = request.unread, request.as_compiled()
    settings = request.declared.dump_settings(config.load())
    dump = Dump(settings, request.source.name)
    compiler = backend(request.target.backend)
    clock = _Clock()
    program = front(request)
    clock.lap("frontend")
    dump.ir("ir", program.function)
    function = run_passes(program.function, check=settings.verify)
    clock.lap("passes")
    dump.ir("passes", function)
    key = cache_key(function, request.options, request.target, compiler.version())
    store = disk_store(settings.cache_directory) if settings.disk_cache else None
    executable = store.get(key) if store is not None else None
    clock.lap("cache")
    from_disk = executable is not None
    if executable is None:
        executable = built_ahead.pop(key, None)
    if executable is None or dump.wants("lowered"):  # the other stages are in the executable
        lowered = lower(request, function, settings.verify)
        clock.lap("lower")
        if settings.prove:  # not by `lower`, so that it has a lap of its own
            compiler.prove(lowered)
            clock.lap("prove")
        dump.ir("lowered", lowered)
        if executable is None:
            source = compiler.emit(lowered, request.target, request.options)
            clock.lap("emit")
            target, options, make = request.target, request.options, partial(_build, compiler)
            executable = machine_code(function, source, target, options, make, settings)
            clock.lap("build")
            if store is not None:
                store.put(key, executable)
                clock.lap("cache")
    dump.text("source", executable.source)
    if dump.wants("plan"):
        dump.text("plan", plan_text(program.function, request.target, request.options, executable.facts, unread))
    dump.text("log", executable.log)
    if executable.facts.get("spills"):
        types = types_text(program.function)
        warn_of_spills(request.source, executable.facts, request.options, request.target.arch, key, types)
    loaded = compiler.load(executable)
    clock.lap("load")
    return Compiled(loaded, executable, program, key, from_disk, clock.seconds, function.facts, options=request.options)


Build = Callable[[Source, Target], Executable]
"""Machine code of a generated text, made in this process or in another one."""


def machine_code(
    function: Function, source: Source, target: Target, options: CompileOptions, build: Build, settings: Config
) -> Executable:
    """The machine code of a kernel, or that of an attempt that spills fewer registers.

    Args:
        function: the kernel's IR after the neutral passes.
        source: its generated text.
        target: the target.
        options: the options that the text was made with.
        build: makes machine code of a text.
        settings: whether IR that is lowered again is verified and proved.
    """
    compiler, executable = backend(target.backend), build(source, target)
    for attempt in compiler.attempts if executable.facts.get("spills") else ():
        if not executable.facts["spills"] or not attempt.when(executable):
            continue
        text = replace(source, facts={**source.facts, **attempt.facts})
        if attempt.options:
            changed = replace(options, **attempt.options)
            try:
                lowered = _lowered(function, target, changed, settings.verify, settings.prove)
            except KernelTypeError:  # with these options it may need more shared memory than there is
                continue
            # An error of these is a defect of the compiler or the toolchain, which must show.
            text = compiler.emit(lowered, target, changed)
            retry = machine_code(function, text, target, changed, build, settings)  # the text has attempts of its own
        else:
            retry = build(text, target)
        if attempt.always or retry.facts["spills"] < executable.facts["spills"]:
            note = attempt.note.format_map(executable.facts)
            source, executable = text, replace(retry, log=f"{note}\n{retry.log}")
    return executable


def _build(compiler: Backend, source: Source, target: Target) -> Executable:
    """Build machine code; add advice to an error that a missing package may cause."""
    try:
        return compiler.build(source, target)
    except Exception as error:
        if smells_of_installation(error):
            error.add_note(advice(compiler.name))
        raise


def render(request: Request, stage: str, executables: MutableMapping[str, Executable]) -> str:
    """The text of one stage, made without the disk cache.

    Args:
        request: the kernel.
        stage: "ir", "passes", "lowered", "source", "plan" or "log". Without a toolchain the plan lacks registers and
            spills, and says why. "lowered" and "source" build nothing: where a kernel is built again with more warps,
            they are those of the first build, and plan and log those of the build in use.
        executables: machine code that is in memory, by cache key; what is built for the text is added.

    Raises:
        ValueError: there is no such stage.
    """
    if stage not in config.STAGES:
        code = stage in ("ptx", "sass", "cubin", "asm", "llir", "llvm", "image")
        machine = (
            "; for machine code: python -m cutile compile FILE KERNEL --stage image --output k.cubin, and nvdisasm"
        )
        raise ArgumentError(f"no stage {stage!r}; there are {', '.join(config.STAGES)}{machine if code else ''}")
    unread, request, settings = request.unread, request.as_compiled(), config.load()
    program = front(request)
    if stage == "ir":
        return print_function(program.function)
    function = run_passes(program.function, check=settings.verify)
    if stage == "passes":
        return print_function(function)
    lowered = lower(request, function, settings.verify)
    if stage == "lowered":
        return print_function(lowered)
    compiler = backend(request.target.backend)
    source = compiler.emit(lowered, request.target, request.options)
    if stage == "source":
        return source.text
    target, options = request.target, request.options
    key = cache_key(function, options, target, compiler.version())
    try:
        if key not in executables:
            build = partial(_build, compiler)
            executables[key] = machine_code(function, source, target, options, build, settings)
    except ImportError as error:
        if stage == "log":
            raise
        facts = without_toolchain(source.facts, compiler.name, error)
    else:
        if stage == "log":
            return executables[key].log
        facts = executables[key].facts
    return plan_text(program.function, target, options, facts, unread)
