"""Training runs: receive the statistics of ranks, return the state of AdaFocal."""
