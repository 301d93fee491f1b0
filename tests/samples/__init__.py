"""One row per use of an operation: an expression on tiles, its meaning in NumPy, dtypes, tolerance. Data, no tests."""
