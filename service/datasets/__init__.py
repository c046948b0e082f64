"""Datasets: upload whole or in parts, check, store, load and expire."""
