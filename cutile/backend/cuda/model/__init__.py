"""Models of warp-specialised kernels: shared memory and barriers, as data."""
