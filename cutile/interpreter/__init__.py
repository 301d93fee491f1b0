"""Kernels as plain Python.

The user's own function runs, tile block by tile block, on tiles that hold NumPy arrays.

Breakpoints, `print` and tracebacks are Python's. What an operation means is not written a second time: a call goes to
the front end's handler, which checks it and says which operations it is, and the reference backend runs those at once.
"""
