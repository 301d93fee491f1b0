"""Measurements: kernels and products beside their peers, the runtime, compiling. `cutile.bench` takes the times.

Each program writes a JSON file into docs/benchmarks/. Used from a checkout: the wheel does not ship this folder.
"""
