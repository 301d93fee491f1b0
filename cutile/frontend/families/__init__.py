"""What calls mean, one file per family of operations.

Handlers that check arguments and emit operations.
"""
