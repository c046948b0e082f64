"""Training runs: take the statistics of ranks, return the state of AdaFocal."""
