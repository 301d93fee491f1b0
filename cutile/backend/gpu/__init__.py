"""What the backends of GPUs share.

Nothing here knows a target, its instructions or its toolchain.

Layouts and their assignment, the plan of shared memory, the emitter of declared intrinsics, the look of generated code.
"""
