"""Compare two fits on rows that both were judged on."""
