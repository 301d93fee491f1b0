"""Python source text to tile IR.

Errors point at the user's expression with a caret.
"""
