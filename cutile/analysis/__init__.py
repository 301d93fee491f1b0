"""What passes and targets ask about a program.

Ranges, affine integers, preconditions, order. Changes no IR.
"""
