"""The functions that generated CUDA kernels call: intrinsics in LLVM and PTX.

One per tile operation, one file per family. Nothing outside this folder knows of LLVM or PTX. An intrinsic is made by a
factory that closes over element type, element count and layout, so that a call in a kernel's text names tiles, extents
and indices and nothing else.
"""
