"""Drivers: one interface, three implementations (`cuda`, `host`, `sim`)."""
