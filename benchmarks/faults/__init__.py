"""Every fault between device, gateway and engine: `python -m benchmarks.faults`."""
