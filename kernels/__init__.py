"""Kernels for users, written with the public names of `cutile` and `cuda_async` only.

Each module holds one kernel: the `@entry` function, a host function that returns a `DeviceOp`, its meaning in NumPy,
`CASES` to check it with, and `main()`. `python -m kernels` runs them all; `python -m kernels.saxpy` runs one.
Programs of several ranks, made of these, are in `parallel.py` and `mlp.py`.
Used from a checkout: the wheel does not ship this folder.
"""
