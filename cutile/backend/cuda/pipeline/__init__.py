"""Loops with any number of products, by specialised warps: a list of passes over buffers and pipelines as values."""
