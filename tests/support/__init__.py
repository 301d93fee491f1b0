"""Helpers that several test folders use. No tests here."""
