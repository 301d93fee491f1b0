"""NVRTC, NVIDIA's compiler for CUDA C++ at run time: source text to PTX.

It is an optional package.
"""

from __future__ import annotations

from typing import Any

from cuda_async.errors import KernelCacheError
from cuda_async.installed import install_command

__all__ = ("compile_to_ptx",)


def _load() -> Any:
    try:
        import cuda.bindings.nvrtc as nvrtc  # pyright: ignore
    except ImportError as error:
        raise KernelCacheError(
            f"compiling CUDA C++ needs NVRTC: {install_command('cuda')}. PTX and cubins load without it."
        ) from error
    return nvrtc


def _toolkit_headers() -> list[str]:
    """The folders of CUDA's headers, such as cuda_fp16.h, if a wheel brought them."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory  # pyright: ignore
    except ImportError:
        return []
    find: Any = find_nvidia_header_directory
    folder = find("cudart")
    return [str(folder)] if folder else []


def compile_to_ptx(source: str, name: str, arch: str, options: tuple[str, ...]) -> str:
    """Compile CUDA C++ to PTX.

    Args:
        source: the text. A kernel that is to be found by its name must be `extern "C" __global__`.
        name: the file's name in the log.
        arch: the architecture, such as `sm_90a`.
        options: further options of NVRTC, such as `--use_fast_math`.

    Raises:
        KernelCacheError: NVRTC is missing, or refuses the source; the message has its log.
    """
    nvrtc = _load()
    success = nvrtc.nvrtcResult.NVRTC_SUCCESS
    try:
        code, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    except RuntimeError as error:  # the bindings are there, the library is not
        raise KernelCacheError(f"compiling CUDA C++ needs NVRTC: {install_command('cuda')} ({error})") from error
    if code != success:
        raise KernelCacheError(f"{name}: NVRTC made no program ({code.name})")
    try:
        flags = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}", *options]
        flags += [f"--include-path={folder}" for folder in _toolkit_headers()]
        (code,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        if code != success:
            raise KernelCacheError(f"{name} does not compile for {arch} ({code.name}):\n{_log(nvrtc, program)}")
        _, size = nvrtc.nvrtcGetPTXSize(program)
        text = b" " * size  # NVRTC writes into these bytes
        (code,) = nvrtc.nvrtcGetPTX(program, text)
        if code != success:
            raise KernelCacheError(f"{name}: NVRTC gave no PTX ({code.name})")
        return text.rstrip(b"\0 ").decode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    text = b" " * size  # NVRTC writes into these bytes
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.rstrip(b"\0 ").decode(errors="replace")
