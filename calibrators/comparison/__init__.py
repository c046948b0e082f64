"""Comparison of fits on the rows that all of them were judged on."""
