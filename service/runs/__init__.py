"""Training runs: statistics of ranks in, AdaFocal's state out."""
