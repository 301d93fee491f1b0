"""Models of what warps of a lowered kernel do to shared memory and barriers."""
