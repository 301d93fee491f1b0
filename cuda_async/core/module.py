"""Loaded GPU code: `Module`, of PTX, a cubin, a file or CUDA C++; its `Function`s.

    module = device.load_module_from_ptx_src(text)
    function = module.load_function("saxpy")
    AsyncKernelLaunch(function)...                     # launch.py

A cubin has no names and types of parameters: the driver reports their sizes only. PTX text declares a type for each
parameter, so functions of modules that came as text know the types. Kernels of `cutile` load themselves, without this
module. `cuda_async.graph.Module` is no loaded code: it is a model whose steps a graph runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_async.core.device import Device, default_device
from cuda_async.driver.interface import DriverFunction, DriverModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = (
    "Function",
    "Module",
    "load_module_from_bytes",
    "load_module_from_cuda_src",
    "load_module_from_file",
    "load_module_from_ptx_src",
)

# PTX ISA, "Kernel Function Parameters" and ".entry".
_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"', re.DOTALL)  # comments, and strings, which may look like them
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*\(([^)]*)\)")  # a kernel's name, and the text of its parameters
_PARAMETER = re.compile(r"\.param\s*(?:\.align\s+\w+\s*)?\.(\w+)[^\[]*(\[\w*\])?")  # its type, and an array's size


class Function:
    """A kernel of a loaded module.

    The module stays loaded as long as its functions live.

    Made by `module.load_function`.

    Attributes:
        device: the device that it is loaded on.
        name: its name in the module.
    """

    __slots__ = ("_driver", "_owner", "_sizes", "_types", "device", "name")

    def __init__(
        self, device: Device, name: str, driver: DriverFunction, types: tuple[str, ...] | None, owner: object = None
    ) -> None:
        self.device = device
        self.name = name
        self._driver = driver
        self._types = types
        self._sizes = driver.parameter_sizes
        self._owner = owner

    @classmethod
    def borrow_raw(cls, device: Device, raw: int, *, name: str = "function", owner: object = None) -> Function:
        """Wrap a `CUfunction` that somebody else loaded; it is never unloaded here.

        Args:
            device: the device that it is loaded on.
            raw: the handle.
            name: for errors.
            owner: held as long as this lives.

        Raises:
            LaunchError: the device runs no GPU code.
        """
        return cls(device, name, device.driver.borrow_function(raw), None, owner)

    @property
    def driver(self) -> DriverFunction:
        """The driver's function."""
        return self._driver

    @property
    def parameter_sizes(self) -> tuple[int, ...] | None:
        """Bytes of each parameter, by the driver; None before CUDA 12.4."""
        return self._sizes

    @property
    def parameter_types(self) -> tuple[str, ...] | None:
        """The PTX type of each parameter, such as `f32`; None for code without PTX text."""
        return self._types

    def cu_function(self) -> int:
        """The driver's handle, as a number."""
        return self._driver.raw

    def __repr__(self) -> str:
        parameters = self._types or self._sizes
        return f"<Function {self.name}{parameters or ''} on {self.device}>"


class Module:
    """Loaded code.

    Made by `device.load_module_from_*`; unloaded when neither it nor a function of it is in use.
    """

    __slots__ = ("_driver", "_owner", "_types", "device")

    def __init__(
        self,
        device: Device,
        driver: DriverModule,
        types: Mapping[str, tuple[str, ...]] | None = None,
        owner: object = None,
    ) -> None:
        self.device = device
        self._driver = driver
        self._types = types or {}
        self._owner = owner

    @classmethod
    def borrow_raw(cls, device: Device, raw: int, *, owner: object = None) -> Module:
        """Wrap a `CUmodule` that somebody else loaded; it is never unloaded here.

        Args:
            device: the device that it is loaded on.
            raw: the handle.
            owner: held as long as this, or a function of it, lives.

        Raises:
            LaunchError: the device runs no GPU code.
        """
        return cls(device, device.driver.borrow_module(raw), owner=owner)

    def load_function(self, name: str) -> Function:
        """Find a kernel by its name in the module (of C++: declare it `extern "C"`).

        Raises:
            DriverError: the module has no such kernel.
        """
        # The driver's function holds the driver's module, which is unloaded with the last of its functions.
        return Function(self.device, name, self._driver.function(name), self._types.get(name), self._owner)

    def cu_module(self) -> int:
        """The driver's handle, as a number."""
        return self._driver.raw

    def __repr__(self) -> str:
        return f"<Module on {self.device}>"


def _entry_types(ptx: str) -> dict[str, tuple[str, ...]]:
    """The declared types of the parameters of each kernel, by the kernel's name.

    A struct is passed as bytes: `b8[n]`. A kernel is left out if one of its parameters is none that this reads: its
    other types would stand at wrong places.
    """
    kernels: dict[str, tuple[str, ...]] = {}
    for name, text in _ENTRY.findall(_SKIPPED.sub(" ", ptx)):
        parameters = [_PARAMETER.search(parameter) for parameter in text.split(",") if parameter.strip()]
        types = tuple(match.group(1) + (match.group(2) or "") for match in parameters if match is not None)
        if len(types) == len(parameters):
            kernels[name] = types
    return kernels


def load_module_from_ptx_src(source: str | bytes, device: Device | None = None) -> Module:
    """Load PTX text; the driver compiles it for the device.

    Args:
        source: the text.
        device: where; the default device by default.

    Raises:
        DriverError: the driver refuses the text.
        LaunchError: the device runs no GPU code.
    """
    where = device or default_device()
    text = source.decode() if isinstance(source, bytes) else source
    text = text.rstrip("\0")  # the text may already end with the zero byte that the driver asks for
    return Module(where, where.driver.load_module(text.encode() + b"\0"), _entry_types(text))


def load_module_from_bytes(image: bytes, device: Device | None = None) -> Module:
    """Load a cubin or a fat binary. Raises as `load_module_from_ptx_src`."""
    where = device or default_device()
    return Module(where, where.driver.load_module(bytes(image)))


def load_module_from_file(path: str | Path, device: Device | None = None) -> Module:
    """Load a file: PTX text (`.ptx`), CUDA C++ (`.cu`), else a cubin or a fat binary.

    Raises:
        OSError: the file cannot be read.
        DriverError, KernelCacheError, LaunchError: as of the function for that kind of file.
    """
    file = Path(path)
    if file.suffix == ".ptx":
        return load_module_from_ptx_src(file.read_bytes(), device)
    if file.suffix == ".cu":
        return load_module_from_cuda_src(file.read_text(encoding="utf-8"), device, name=file.name)
    return load_module_from_bytes(file.read_bytes(), device)


def load_module_from_cuda_src(
    source: str, device: Device | None = None, *, name: str = "kernel.cu", options: Sequence[str] = ()
) -> Module:
    """Compile CUDA C++ for the device, through NVRTC, and load it.

    Args:
        source: the text; kernels to be found by name are `extern "C" __global__`.
        device: where; the default device by default.
        name: the text's name in the compiler's log.
        options: further options of NVRTC, such as `"--use_fast_math"`.

    Raises:
        KernelCacheError: NVRTC is missing (the message says what to install), or refuses the source (with its log).
        LaunchError: the device runs no GPU code.
    """
    where = device or default_device()
    return load_module_from_ptx_src(where.driver.compile_source(source, name, tuple(options)), where)
