"""Loops of several products beside cuDNN and cuBLAS: `python -m benchmarks.loops`."""
