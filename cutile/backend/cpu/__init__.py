"""The CPU backend: tiles become loops, which Numba and LLVM compile."""
