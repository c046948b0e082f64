"""Hostile bodies and clients, and their effect on other callers."""
