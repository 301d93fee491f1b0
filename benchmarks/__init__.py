"""Measurements of the runtime beside its peers. Each writes a JSON file into docs/benchmarks/."""
