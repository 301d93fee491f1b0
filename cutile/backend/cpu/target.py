"""The machine that CPU code is compiled for.

Its name, and a digest of its features. Object code is kept per target.
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
    knows the other operand to be a number. Only products of 64-bit integers, and their conversions to floats, are the
    slower. Nor with AVX512-FP16: with it and without AVX512DQ, LLVM ends the process where it converts vectors of u64
    to f64. Kernels compute on f16 in f32, whose conversions are F16C's.
    """
    listed: str = llvm.get_host_cpu_features().flatten(sort=True)
    return chosen_features(listed)


def chosen_features(listed: str) -> str:
    """Of a machine's features those that kernels are compiled for.

    With vectors of 512 bits from Ice Lake on: LLVM prefers 256 on every processor of Intel's, since the first ones
    with AVX-512 lowered their clock for it.

    Example:
        >>> chosen_features("+avx512dq,+avx512f,+avx512vbmi2")
        '-avx512dq,+avx512f,+avx512vbmi2,-prefer-256-bit'
    """
    features = listed.replace("+avx512dq", "-avx512dq").replace("+avx512fp16", "-avx512fp16")
    return f"{features},-prefer-256-bit" if "+avx512vbmi2" in features else features


@cache
def arch() -> str:
    """This machine as a word.

    System, LLVM's name of the CPU, and a digest of its features.

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
    """Make LLVM ready to compile for and to load on this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def target_machine() -> Any:
    """LLVM's description of this machine, for code that is loaded into this process."""
    initialize()
    triple = llvm.get_process_triple()
    reloc = "static" if platform.machine().lower() in ("x86_64", "amd64") else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features(),
        opt=3,
        reloc=reloc,
        codemodel="jitdefault",
        jit=True,
    )
