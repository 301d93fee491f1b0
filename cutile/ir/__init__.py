"""What a program is: types, values, operations, blocks.

Knows no operation family and no target.
"""
