"""The parts that backends of GPUs share.

They are layouts and their assignment, the plan of shared memory, the emitter of declared intrinsics, and the look of
generated code. Nothing here knows a target, its instructions or its toolchain.
"""
