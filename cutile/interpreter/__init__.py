"""Kernels as plain Python.

The author's own function runs, tile block by tile block, on tiles that hold NumPy arrays.

Breakpoints, `print` and tracebacks are Python's. The meaning of an operation is not written a second time here. A call
goes to the front end's handler, which checks it and makes operations of it. The reference backend runs these at once.
"""
