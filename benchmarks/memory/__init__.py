"""Kernels that move bytes, beside copies of as many and beside torch: see `__main__`."""
