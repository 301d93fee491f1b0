"""Target-neutral passes. `pipeline.py` alone knows their order."""
