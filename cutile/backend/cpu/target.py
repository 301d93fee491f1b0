"""The machine that CPU code is compiled for: its name, a digest of its features.

The disk cache has that name in its keys.
"""

import hashlib
import platform
from functools import cache
from typing import Any

import llvmlite.binding as _binding

from cutile.backend.interface import Target
from cutile.config import usable_cores

llvm: Any = _binding


@cache
def features() -> str:
    """LLVM's feature list of this machine, sorted, such as `"+avx2,+fma,..."`.

    Without AVX512DQ: with it, LLVM 22 makes scalar code of `maximumnum` and `minimumnum` that returns NaN where it
    knows the other operand to be a number. Without it, only products of 64-bit integers and their conversions to floats
    are slower. Without AVX512-FP16: with it but without AVX512DQ, LLVM ends the process where it converts vectors of
    u64 to f64. Kernels compute on f16 in f32, and F16C has the conversions.
    """
    listed: str = llvm.get_host_cpu_features().flatten(sort=True)
    return chosen_features(listed)


def chosen_features(listed: str) -> str:
    """The features that kernels are compiled for, of a machine's list.

    Processors from Ice Lake on (`avx512vbmi2`) get vectors of 512 bits. LLVM prefers 256 on all of Intel's, since the
    first ones with AVX-512 lowered their clock for it.

    Example:
        >>> chosen_features("+avx512dq,+avx512f,+avx512vbmi2")
        '-avx512dq,+avx512f,+avx512vbmi2,-prefer-256-bit'
    """
    usable = listed.replace("+avx512dq", "-avx512dq").replace("+avx512fp16", "-avx512fp16")
    return f"{usable},-prefer-256-bit" if "+avx512vbmi2" in usable else usable


@cache
def arch() -> str:
    """This machine as a word: its system, its CPU, and a digest of the CPU's features.

    Example:
        >>> arch().split("-")[0] in ("linux", "darwin", "windows")
        True
    """
    digest = hashlib.sha256(features().encode()).hexdigest()[:12]
    return f"{platform.system().lower()}-{platform.machine().lower()}-{llvm.get_host_cpu_name()}-{digest}"


def host_target() -> Target:
    """The target that code for this machine is compiled for."""
    return Target("cpu", arch(), usable_cores())


@cache
def initialize() -> None:
    """Make LLVM ready to compile for this machine, and to load code on it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def target_machine() -> Any:
    """LLVM's description of this machine, for code that is loaded into this process."""
    initialize()
    triple = llvm.get_process_triple()
    # As Numba does: code that is linked at its final address needs no tables of addresses on x86.
    reloc = "static" if platform.machine().lower() in ("x86_64", "amd64") else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features(),
        opt=3,
        reloc=reloc,
        codemodel="jitdefault",
        jit=True,
    )
