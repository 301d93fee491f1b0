"""Native threads that run the blocks of a launch: a team, one for the process.

Python's threads would take the interpreter's lock before and after every range of blocks. Where sixteen threads do so,
the lock goes from one sleeping thread to the next, which takes longer than a short kernel. Here a launch enters native
code once. There it wakes the team, takes ranges as the team's threads do, and waits for them.

The team's threads sleep in native code, and know nothing of Python. Several launches may run at once: the threads take
ranges of each in turn. The team needs POSIX threads. Elsewhere the stream's workers share the ranges.
"""

import _thread
import ctypes
import os
import platform
from typing import Any

from cuda_async.locks import new_lock
from cutile.backend.cpu.target import initialize, llvm, target_machine

MAX_JOBS = 16
"""Launches that the team helps at once. Further launches run on the threads that bring them alone."""
SPINS = 2000
"""How often a launch checks whether the team has left its job before it sleeps: some 50 microseconds."""
_LOCK_BYTES = 256
"""Bytes for a mutex or a condition variable, more than any system takes."""

# x86's hint for loops that spin: it saves power, and leaves the core to its other hardware thread (Intel SDM, "PAUSE").
_PAUSE = 'call void asm sideeffect "pause", ""()' if platform.machine().lower() in ("x86_64", "amd64") else ""

# A team: its lock and two conditions ("there is work", "a thread has left a job"); the number of jobs; the jobs.
# A job: function, arguments, number of blocks, blocks per range, number of ranges; the next range; the number of the
# team's threads that work on it; the address of their scratch memory, and its bytes per thread. The thread that brings
# a job owns it.
#
# Counters are atomic where a thread reads them without the lock. The next range is claimed with relaxed order, since
# ranges do not depend on each other, and the lock has made the job visible. The number of threads at a job is
# decremented with release and read with acquire: the thread that brought the job must see what they have written.
_CODE = f"""
%team = type {{ [{_LOCK_BYTES} x i8], [{_LOCK_BYTES} x i8], [{_LOCK_BYTES} x i8], i64, [{MAX_JOBS} x ptr] }}
%job = type {{ ptr, ptr, i64, i64, i64, i64, i64, ptr, i64 }}

declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)

define void @team_open(ptr %team) {{
  %work = getelementptr %team, ptr %team, i32 0, i32 1
  %left = getelementptr %team, ptr %team, i32 0, i32 2
  call i32 @pthread_mutex_init(ptr %team, ptr null)
  call i32 @pthread_cond_init(ptr %work, ptr null)
  call i32 @pthread_cond_init(ptr %left, ptr null)
  ret void
}}

; Run ranges of a job until none is left. With `share`, stop after a range if there are other jobs.
define internal void @take_ranges(ptr %team, ptr %job, ptr %scratch, i1 %share) {{
start:
  %arguments_at = getelementptr %job, ptr %job, i32 0, i32 1
  %blocks_at = getelementptr %job, ptr %job, i32 0, i32 2
  %grain_at = getelementptr %job, ptr %job, i32 0, i32 3
  %ranges_at = getelementptr %job, ptr %job, i32 0, i32 4
  %next_at = getelementptr %job, ptr %job, i32 0, i32 5
  %jobs_at = getelementptr %team, ptr %team, i32 0, i32 3
  %function = load ptr, ptr %job
  %arguments = load ptr, ptr %arguments_at
  %blocks = load i64, ptr %blocks_at
  %grain = load i64, ptr %grain_at
  %ranges = load i64, ptr %ranges_at
  br label %claim
claim:
  %range = atomicrmw add ptr %next_at, i64 1 monotonic
  %is_left = icmp slt i64 %range, %ranges
  br i1 %is_left, label %run, label %done
run:
  %first = mul i64 %range, %grain
  %far = add i64 %first, %grain
  %is_whole = icmp slt i64 %far, %blocks
  %last = select i1 %is_whole, i64 %far, i64 %blocks
  call void %function(ptr %arguments, ptr %scratch, i64 %first, i64 %last)
  %jobs = load atomic i64, ptr %jobs_at monotonic, align 8
  %has_others = icmp sgt i64 %jobs, 1
  %stops = and i1 %has_others, %share
  br i1 %stops, label %done, label %claim
done:
  ret void
}}

; A thread of the team, for ever: it takes jobs with ranges left in turn, beginning with another at each turn.
define void @team_serve(ptr %team, i64 %member) {{
start:
  %work = getelementptr %team, ptr %team, i32 0, i32 1
  %left = getelementptr %team, ptr %team, i32 0, i32 2
  %count_at = getelementptr %team, ptr %team, i32 0, i32 3
  call i32 @pthread_mutex_lock(ptr %team)
  br label %look
look:
  %turn = phi i64 [ %member, %start ], [ %turn, %sleep ], [ %next_turn, %leave ]
  %count = load atomic i64, ptr %count_at monotonic, align 8
  br label %try
try:
  %step = phi i64 [ 0, %look ], [ %next_step, %other ]
  %is_job = icmp slt i64 %step, %count
  br i1 %is_job, label %check, label %sleep
check:
  %far = add i64 %step, %turn
  %place = urem i64 %far, %count
  %place_at = getelementptr %team, ptr %team, i32 0, i32 4, i64 %place
  %job = load ptr, ptr %place_at
  %ranges_at = getelementptr %job, ptr %job, i32 0, i32 4
  %next_at = getelementptr %job, ptr %job, i32 0, i32 5
  %ranges = load i64, ptr %ranges_at
  %next = load atomic i64, ptr %next_at monotonic, align 8
  %is_open = icmp slt i64 %next, %ranges
  br i1 %is_open, label %enter, label %other
other:
  %next_step = add i64 %step, 1
  br label %try
sleep:
  call i32 @pthread_cond_wait(ptr %work, ptr %team)
  br label %look
enter:
  %inside_at = getelementptr %job, ptr %job, i32 0, i32 6
  %scratch_at = getelementptr %job, ptr %job, i32 0, i32 7
  %bytes_at = getelementptr %job, ptr %job, i32 0, i32 8
  %scratch = load ptr, ptr %scratch_at
  %bytes = load i64, ptr %bytes_at
  %offset = mul i64 %bytes, %member
  %own = getelementptr i8, ptr %scratch, i64 %offset
  %before = atomicrmw add ptr %inside_at, i64 1 monotonic
  call i32 @pthread_mutex_unlock(ptr %team)
  call void @take_ranges(ptr %team, ptr %job, ptr %own, i1 true)
  call i32 @pthread_mutex_lock(ptr %team)
  %were = atomicrmw sub ptr %inside_at, i64 1 release
  %next_turn = add i64 %turn, 1
  %is_last = icmp eq i64 %were, 1
  br i1 %is_last, label %tell, label %leave
tell:
  ; The job is not touched from here on: the thread that brought it looks at the count without the lock, and may have
  ; gone with the job.
  call i32 @pthread_cond_broadcast(ptr %left)
  br label %leave
leave:
  br label %look
}}

; Run a job, with `helpers` threads of the team woken, and wait for all that came.
define void @team_run(ptr %team, ptr %job, ptr %scratch, i64 %helpers) {{
start:
  %work = getelementptr %team, ptr %team, i32 0, i32 1
  %left = getelementptr %team, ptr %team, i32 0, i32 2
  %count_at = getelementptr %team, ptr %team, i32 0, i32 3
  %inside_at = getelementptr %job, ptr %job, i32 0, i32 6
  call i32 @pthread_mutex_lock(ptr %team)
  %count = load atomic i64, ptr %count_at monotonic, align 8
  %is_full = icmp eq i64 %count, {MAX_JOBS}
  br i1 %is_full, label %alone, label %post
alone:
  call i32 @pthread_mutex_unlock(ptr %team)
  call void @take_ranges(ptr %team, ptr %job, ptr %scratch, i1 false)
  ret void
post:
  %place_at = getelementptr %team, ptr %team, i32 0, i32 4, i64 %count
  store ptr %job, ptr %place_at
  %more = add i64 %count, 1
  store atomic i64 %more, ptr %count_at monotonic, align 8
  call i32 @pthread_mutex_unlock(ptr %team)
  br label %wake
wake:
  %woken = phi i64 [ 0, %post ], [ %next_woken, %signal ]
  %is_helper = icmp slt i64 %woken, %helpers
  br i1 %is_helper, label %signal, label %take
signal:
  call i32 @pthread_cond_signal(ptr %work)
  %next_woken = add i64 %woken, 1
  br label %wake
take:
  call void @take_ranges(ptr %team, ptr %job, ptr %scratch, i1 false)
  call i32 @pthread_mutex_lock(ptr %team)
  br label %find
find:
  %place = phi i64 [ 0, %take ], [ %next_place, %find ]
  %found_at = getelementptr %team, ptr %team, i32 0, i32 4, i64 %place
  %found = load ptr, ptr %found_at
  %next_place = add i64 %place, 1
  %is_own = icmp eq ptr %found, %job
  br i1 %is_own, label %drop, label %find
drop:
  %jobs = load atomic i64, ptr %count_at monotonic, align 8
  %fewer = sub i64 %jobs, 1
  %last_at = getelementptr %team, ptr %team, i32 0, i32 4, i64 %fewer
  %last = load ptr, ptr %last_at
  store ptr %last, ptr %found_at
  store atomic i64 %fewer, ptr %count_at monotonic, align 8
  call i32 @pthread_mutex_unlock(ptr %team)
  br label %spin
spin:
  %spins = phi i64 [ 0, %drop ], [ %next_spin, %again ]
  %inside = load atomic i64, ptr %inside_at acquire, align 8
  %is_over = icmp eq i64 %inside, 0
  br i1 %is_over, label %done, label %again
again:
  {_PAUSE}
  %next_spin = add i64 %spins, 1
  %is_tired = icmp sgt i64 %spins, {SPINS}
  br i1 %is_tired, label %lock, label %spin
lock:
  call i32 @pthread_mutex_lock(ptr %team)
  br label %ask
ask:
  %still = load atomic i64, ptr %inside_at acquire, align 8
  %is_idle = icmp eq i64 %still, 0
  br i1 %is_idle, label %unlock, label %sleep
sleep:
  call i32 @pthread_cond_wait(ptr %left, ptr %team)
  br label %ask
unlock:
  call i32 @pthread_mutex_unlock(ptr %team)
  br label %done
done:
  ret void
}}
declare i32 @pthread_cond_broadcast(ptr)
"""


class Job(ctypes.Structure):
    """The job that `team_run` runs; its fields are those of `%job` above."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("grain", ctypes.c_int64),
        ("ranges", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("inside", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_int64),
    )


class Team:
    """`size` threads that help the thread which brings a job."""

    def __init__(self, size: int) -> None:
        self.size = size
        initialize()
        llvm.initialize_native_asmparser()
        # The engine and the team's memory are never freed: the threads are in this code until the process ends.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_CODE), target_machine())
        self._engine.finalize_object()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))
        # `%team` has a lock, two conditions, a count and the jobs. The bytes beyond that let it begin at a cache line.
        self._memory = ctypes.create_string_buffer(3 * _LOCK_BYTES + 8 * (MAX_JOBS + 2) + _LOCK_BYTES)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))
        start = ctypes.addressof(self._memory)
        self._address = -(-start // 64) * 64
        self._run = self._function("team_run", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._function("team_open")(self._address)
        serve = self._function("team_serve", ctypes.c_int64)
        for member in range(size):
            # Not `threading.Thread`: these threads never end, and nobody is to wait for them.
            _thread.start_new_thread(serve, (self._address, member))

    def _function(self, name: str, *parameters: Any) -> Any:
        address = self._engine.get_function_address(name)
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p, *parameters)(address)

    def run(self, job: Job, scratch: int) -> None:
        """Run a job to its end, on this thread and the team's threads that are free.

        Args:
            job: the job.
            scratch: the address of this thread's own scratch memory.
        """
        # This thread takes ranges too: one range fewer needs a helper.
        self._run(self._address, ctypes.addressof(job), scratch, min(self.size, job.ranges - 1))


_team: Team | None = None
_lock = new_lock()


def team(threads: int) -> Team | None:
    """The team of this process.

    None without POSIX threads, and for launches of a single thread.

    Args:
        threads: the threads that a launch may use, its own included. The first launch decides for the process.
    """
    global _team
    if threads < 2 or os.name != "posix":
        return None
    if _team is None:
        with _lock:
            if _team is None:
                _team = Team(threads - 1)
    return _team


def _after_fork() -> None:
    """The child has none of the parent's threads, one of which may have held the lock."""
    global _lock, _team
    _lock, _team = new_lock(), None


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)
