"""Training runs: receive statistics from ranks, and return the AdaFocal state."""
