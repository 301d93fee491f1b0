"""The kernels of `kernels/`, one by one, beside NumPy, torch and a plain copy: `python -m kernels`, `make bench`."""
