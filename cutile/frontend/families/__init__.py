"""What calls mean, one file per family of operations: handlers that check arguments and emit operations."""
