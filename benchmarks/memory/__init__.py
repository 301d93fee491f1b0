"""Kernels that move bytes, beside a copy of as many bytes and beside torch: see `__main__`."""
