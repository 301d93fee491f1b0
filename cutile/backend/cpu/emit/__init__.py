"""Lowered IR to readable Python text, one file per family of operations.

Decides nothing: it writes what is there.
"""
