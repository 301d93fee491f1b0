"""The CPU backend: tiles to loops that LLVM vectorises, compiled by Numba to object code for this machine."""
