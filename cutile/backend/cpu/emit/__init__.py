"""Lowered IR to readable Python text, one file per family of operations.

Nothing is decided here: each operation is written as it is.
"""
