"""What measures: kernels and products beside their peers, the runtime, compiling. How time is taken: `cutile.bench`.

Each program writes a JSON file into docs/benchmarks/. Used from a checkout: the wheel does not ship this folder.
"""
