"""How close the log comes to what its client can do: `python -m benchmarks`."""
