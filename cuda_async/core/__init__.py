"""The runtime's core: operations, runs, streams, memory.

Imports nothing but itself, `driver/` and the leaves.
"""
