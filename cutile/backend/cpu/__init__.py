"""The CPU backend: tiles become loops that LLVM vectorises.

Numba compiles them to object code for this machine.
"""
