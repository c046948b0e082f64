"""Comparison of fits on rows that all of them were judged on."""
