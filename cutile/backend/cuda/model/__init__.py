"""Models of a lowered kernel's warps: their use of shared memory and barriers."""
