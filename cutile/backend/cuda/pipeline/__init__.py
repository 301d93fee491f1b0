"""Loops with any number of products, by specialised warps.

A list of passes over buffers and pipelines as values.
"""
