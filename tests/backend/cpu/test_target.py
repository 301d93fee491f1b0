"""The machine's features that code is compiled for, without those that make LLVM's code wrong."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CONVERTS = """
import llvmlite.binding as llvm
from cutile.backend.cpu import target

class Features:
    def flatten(self, sort):
        return "+avx512dq,+avx512fp16,+avx512vl"

llvm.get_host_cpu_features, llvm.get_host_cpu_name = Features, lambda: "sapphirerapids"
target.initialize()
text = '''
define void @f(ptr %x, ptr %y) {
  %a = load <8 x i64>, ptr %x
  %b = uitofp <8 x i64> %a to <8 x double>
  store <8 x double> %b, ptr %y
  ret void
}
'''
print(len(target.target_machine().emit_object(llvm.parse_assembly(text))) > 0, target.features())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="features of x86")
def test_unsigned_integers_become_floats_on_machines_with_half_precision_arithmetic() -> None:
    """In a process of its own, since LLVM would end it."""
    process = subprocess.run([sys.executable, "-c", CONVERTS], capture_output=True, text=True, timeout=500, check=False)
    assert process.stdout == "True -avx512dq,-avx512fp16,+avx512vl\n", process.stderr
