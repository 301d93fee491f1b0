"""Kernels with products, by specialised warps.

`mainloop_rules.py` and `rules.py` decide on a `Plan`, or refuse it. `warp_specialised.py` lowers the kernel as it says.
"""
