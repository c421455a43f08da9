"""How many sessions one engine serves: `python -m benchmarks.capacity`."""
