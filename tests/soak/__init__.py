"""Long runs of what breaks rarely: `python -m tests.soak`, and a short run of each part with the tests."""
