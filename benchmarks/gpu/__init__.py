"""What verification costs on a GPU, and how many sessions it serves: `python -m benchmarks.gpu`."""
