"""Is there a GPU that tests can use? Asked in another process, without the code under test.

Were the packages' own probe asked, a bug in it would turn every GPU test into a silent skip. The other
process keeps this one free of a CUDA context, so that tests may fork.
"""

import functools
import subprocess
import sys

_PROBE = """
import ctypes, sys
name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
try:
    driver = ctypes.CDLL(name)
except OSError:
    sys.exit(f"no NVIDIA driver ({name} was not found)")
count = ctypes.c_int()
status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
if status:
    sys.exit(f"the NVIDIA driver answered with error {status}")
if not count.value:
    sys.exit("the NVIDIA driver found no device")
"""


@functools.cache
def why_no_gpu() -> str | None:
    """Return None where a CUDA device answers, else one line that says what is missing."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=60)
    return None if probe.returncode == 0 else probe.stderr.strip() or f"probe exited with {probe.returncode}"
