"""Analyses that passes and targets ask about a program.

They find ranges, affine integers, preconditions and the order of tile blocks, and change no IR.
"""
