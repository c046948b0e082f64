"""Training runs: receive statistics from ranks, and return the state of AdaFocal."""
