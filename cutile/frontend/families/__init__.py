"""Handlers of calls, one file per family of operations.

A handler checks the arguments, and emits operations.
"""
