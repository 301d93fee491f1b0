"""`Provenance`: the facts of a timed operation. `Record`: a search's winner.

A record is used while its facts hold.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from cuda_async import Device, DeviceOp, NotReadyError, Use, default_device
from cuda_async.core.operation import whole
from cuda_async.trace import trace_of
from cutile.backend.registry import backend
from cutile.compile.driver import Request
from cutile.compile.key import own_digest
from cutile.errors import StaleRecordError, TuningError
from cutile.launch.kernel_op import KernelOp
from cutile.launch.target import INTERPRET, chosen_backend, target_of
from cutile.tune.space import Config

FORMAT = 1


class ToolchainDriftWarning(UserWarning):
    """A record was made with other versions than those installed.

    Its winner may no longer be the fastest.
    """


@dataclass(frozen=True)
class Provenance:
    """The code, arguments, device and toolchain of an operation that was timed.

    Attributes:
        source: a digest of the kernels' code, helpers and captured values included; unchanged if they move in a file.
        arguments: the kernels with their arguments' layouts, extents and numbers, grids and options.
        device: the device's name.
        arch: the architecture that kernels were compiled for.
        toolchain: versions of cutile and of the compilers that it calls.
    """

    source: str
    arguments: str
    device: str
    arch: str
    toolchain: str

    @classmethod
    def of(cls, make: Callable[[], DeviceOp[Any]], device: Device) -> Provenance:
        """The facts of the operation that `make` returns. The operation does not run.

        Raises:
            KernelError: a kernel does not compile; shows the place.
        """
        kernels = submitted(make, device)[0]
        source = hashlib.sha256("\0".join(kernel.code() for kernel in kernels).encode()).hexdigest()[:16]
        name = chosen_backend()
        target = target_of(device, None if name == INTERPRET else name)
        toolchain = f"cutile {own_digest()[:12]}, {backend(target.backend).version()}"
        return cls(source, "; ".join(kernel.words() for kernel in kernels), device.name, target.arch, toolchain)

    @property
    def subject(self) -> str:
        """A digest of all fields."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


class Launched(Protocol):
    """One launch of an operation: `TracedLaunch`, or a launch that has not run."""

    def code(self) -> str:
        """The kernel's IR, the same wherever it is in its file."""
        ...

    def words(self) -> str:
        """Its arguments' layouts, extents and numbers, its grid and options, as text."""
        ...

    def request(self) -> Request | None:
        """What is to be compiled, if that is known."""
        ...


def submitted(make: Callable[[], DeviceOp[Any]], device: Device) -> tuple[Sequence[Launched], Sequence[Use]]:
    """The launches and the writes of the operation that `make` returns.

    The operation does not run. It cannot be traced if it uses several devices, shares an operation, or has launches
    that search. Then only the launches that exist before it runs are found, and not those of `then`.
    """
    try:
        trace = trace_of(make, device)
    except (NotReadyError, TuningError):
        op = make()
        try:
            parts = [part for part in whole(op) if isinstance(part, KernelOp)]
            uses = [Use(*use) for part in whole(op) for lease in part.leases for use in lease.uses if use[2]]
            return [_Untraced(part, device) for part in parts], uses
        finally:
            op.discard()
    return trace.launches, trace.written


@dataclass(frozen=True)
class _Untraced:
    """A launch of an operation that cannot be traced."""

    op: KernelOp
    device: Device

    def code(self) -> str:
        return self.op.code(self.device)

    def words(self) -> str:
        return self.op.words()

    def request(self) -> Request | None:
        return self.op.request(self.device)


@dataclass(frozen=True)
class Record:
    """The winner of a search.

    Attributes:
        name: the tuner's name.
        space: the digest of the space's parameters.
        config: the winner.
        median_ms: how long it took.
        provenance: what was timed.
    """

    name: str
    space: str
    config: Config
    median_ms: float
    provenance: Provenance

    def save(self, path: str | Path) -> None:
        """Write it as JSON; the folder is made."""
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        fields = {"cutile.tune.record": FORMAT, **asdict(self), "config": dict(self.config)}
        file.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read a record without comparing its facts, unlike `load_verified`.

        Raises:
            StaleRecordError: the file is no record.
            OSError: it cannot be read.
        """
        try:
            fields: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            if fields["cutile.tune.record"] != FORMAT:
                raise ValueError(fields["cutile.tune.record"])
            provenance = Provenance(**fields["provenance"])
            return cls(fields["name"], fields["space"], Config(fields["config"]), fields["median_ms"], provenance)
        except (KeyError, TypeError, ValueError) as error:
            raise StaleRecordError(f"{path} is no record of a search") from error


def load_verified(path: str | Path, candidate: Callable[[Config], DeviceOp[Any]], *, name: str | None = None) -> Record:
    """Read a record of this kernel, these arguments and this device.

    Args:
        path: what `Record.save` wrote.
        candidate: the function that was tuned. It is called with the winner, to compare; its operation is not run.
        name: the name that the tuner must have had; None for any.

    Raises:
        StaleRecordError: the kernel's code, the arguments or the device differ, or the file is no record; says which.
        OSError: the file cannot be read.

    Warns:
        ToolchainDriftWarning: the record was made with other versions of the toolchain.
    """
    record = Record.load(path)
    if name is not None and record.name != name:
        raise StaleRecordError(f"{path} is the record of {record.name!r}, not of {name!r}")
    facts = Provenance.of(lambda: candidate(record.config), default_device())
    recorded_facts = record.provenance
    for words, recorded, current in (
        ("device is", f"{recorded_facts.device} ({recorded_facts.arch})", f"{facts.device} ({facts.arch})"),
        ("kernel's code is", recorded_facts.source, facts.source),
        ("arguments are", recorded_facts.arguments, facts.arguments),
    ):
        if recorded != current:
            raise StaleRecordError(
                f"{path}: the {words} not what was tuned: {recorded} then, {current} now; tune again, which takes what "
                "is still right from the log"
            )
    if recorded_facts.toolchain != facts.toolchain:
        warnings.warn(
            f"{path} was made with {recorded_facts.toolchain}; installed is {facts.toolchain}: {record.config} may no "
            "longer be the fastest",
            ToolchainDriftWarning,
            stacklevel=2,
        )
    return record
