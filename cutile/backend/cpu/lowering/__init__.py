"""Tiles to loops over elements: a pure function of the IR.

No text is made here, and nothing is compiled.
"""
