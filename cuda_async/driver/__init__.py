"""Drivers: one interface, three siblings (`cuda`, `host`, `sim`)."""
