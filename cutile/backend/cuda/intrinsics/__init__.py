"""What generated CUDA kernels call.

One Numba intrinsic per tile operation, in LLVM IR and PTX, one file per family.

Nothing outside this folder knows of LLVM or PTX. An intrinsic is made by a factory that closes over element type,
element count and layout, so that a call in a kernel's text names tiles, extents and indices and nothing else.
"""
