"""The functions that generated CUDA kernels call: intrinsics in LLVM and PTX.

There is one for each tile operation, and a file for each family. LLVM IR and PTX are written only here; `build.py` and
`toolchain.py` compile them. A factory makes an intrinsic, which closes over element type, element count and layout. So
a call in a kernel's text names only tiles, extents and indices.
"""
