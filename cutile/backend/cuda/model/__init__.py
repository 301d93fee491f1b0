"""What lowered kernels of specialised warps do to shared memory and barriers, as data, and models that check it."""
