"""Compare speed and memory with other libraries: run `python -m benchmarks`."""
