"""Every `CUDA_ASYNC_*` environment variable, read once into one frozen record.

The defaults are in brackets.

    CUDA_ASYNC_DEVICE           default device: `cpu`, `cuda` or `cuda:1`   (best one found)
    CUDA_ASYNC_WORKERS          worker threads of the host driver           (cores this process may use, at least 2)
    CUDA_ASYNC_SPIN_BUDGET_US   longest spin before an await suspends       (20)
    CUDA_ASYNC_POOL_BYTES       freed memory a pool keeps for reuse         (unset: the driver's choice)
    CUDA_ASYNC_EXIT_LIMIT_S     longest wait for running work at exit       (5)
    CUDA_ASYNC_CHECK            1: check that every use of memory is ordered (0)

`Communicator.join()` reads the variables that a launcher of several processes sets: `RANK`, `WORLD_SIZE`,
`MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RUN_ID`, and `CUDA_ASYNC_UNIQUE_ID`.

No other module of the package reads the environment.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import cache

from cuda_async.errors import ArgumentError

__all__ = ("Config", "Process", "config", "leave_multicast_off", "process_of_launcher", "usable_cores")


def usable_cores() -> int:
    """The number of cores that this process may use; by its affinity, if it has one."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of this process; the module's docstring describes each variable."""

    device: str | None
    workers: int
    spin_budget_us: float
    pool_bytes: int | None
    exit_limit_s: float
    check: bool


def _switch(name: str) -> bool:
    text = (os.environ.get(name) or "0").strip()
    if text not in ("0", "1"):
        raise ArgumentError(f"{name}={text!r}: expected 0 or 1")
    return text == "1"


def _number(name: str, default: float, least: float) -> float:
    text = os.environ.get(name)
    if text is None or not text.strip():
        return default
    try:
        number = float(text)
    except ValueError:
        raise ArgumentError(f"{name}={text!r}: expected a number") from None
    if not number >= least:  # true for NaN, too
        raise ArgumentError(f"{name}={text!r}: expected a number of at least {least:g}")
    return number


def _whole(name: str, default: float, least: float) -> int:
    try:
        return int(_number(name, default, least))
    except OverflowError:
        raise ArgumentError(f"{name}={os.environ[name]!r}: expected a finite number") from None


@cache
def config() -> Config:
    """Return the settings, read from the environment at the first call.

    Raises:
        ValueError: a variable is no number in its range, or a switch is neither 0 nor 1.
    """
    pool = _whole("CUDA_ASYNC_POOL_BYTES", -1, -1)  # -1: the driver's choice
    return Config(
        device=os.environ.get("CUDA_ASYNC_DEVICE") or None,
        # At least two by default: two streams then make progress at the same time, even on one core.
        workers=_whole("CUDA_ASYNC_WORKERS", max(2, usable_cores()), 1),
        spin_budget_us=_number("CUDA_ASYNC_SPIN_BUDGET_US", 20, 0),
        pool_bytes=None if pool < 0 else pool,
        exit_limit_s=min(_number("CUDA_ASYNC_EXIT_LIMIT_S", 5, 0), threading.TIMEOUT_MAX),  # `join` takes no longer one
        check=_switch("CUDA_ASYNC_CHECK"),
    )


def leave_multicast_off() -> None:
    """Set `NCCL_NVLS_ENABLE=0` for NCCL, unless the variable is set.

    NVLink multicast is a resource of the NVLink switches, which all programs of a machine share. A program that dies
    while it uses multicast can keep it from others.
    """
    if not os.environ.get("NCCL_NVLS_ENABLE"):
        os.environ["NCCL_NVLS_ENABLE"] = "0"


@dataclass(frozen=True)
class Process:
    """One process of a launcher, as the launcher's variables describe it.

    Attributes:
        rank: number of the process, from 0.
        world: number of processes.
        unique_id: the communicator to join; empty where `host` and `port` are set.
        host: the host of rank 0.
        port: the port of the store by which the launcher's processes meet.
        run: the launcher's name of the run; empty where it has none.
    """

    rank: int
    world: int
    unique_id: str
    host: str = ""
    port: int = 0
    run: str = ""


def process_of_launcher() -> Process:
    """Read a launcher's variables: those of `torchrun`, or `CUDA_ASYNC_UNIQUE_ID`.

    Raises:
        ValueError: one of the variables is missing, or is no number.
    """
    unique_id = os.environ.get("CUDA_ASYNC_UNIQUE_ID", "")
    # A unique id says where the ranks meet. Host and port are needed only without one.
    names = ("RANK", "WORLD_SIZE") if unique_id else ("RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR")
    for name in names:
        text = os.environ.get(name, "")
        if not text or (name != "MASTER_ADDR" and not text.isdecimal()):
            raise ArgumentError(
                f"{name}={text!r}: expected what a launcher of several processes sets: RANK, WORLD_SIZE, and "
                "CUDA_ASYNC_UNIQUE_ID, or MASTER_ADDR and MASTER_PORT"
            )
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if unique_id:
        return Process(rank, world, unique_id)
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return Process(rank, world, "", os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), run)
