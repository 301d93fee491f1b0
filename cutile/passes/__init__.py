"""Target-neutral passes, one file each. `pipeline.py` alone knows their order."""
