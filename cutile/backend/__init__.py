"""Targets: `reference`, `cpu` and `cuda`, siblings behind one interface."""
