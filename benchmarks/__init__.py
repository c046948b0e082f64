"""Side-by-side ratios against other libraries: run `python -m benchmarks`."""
