"""Hostile bodies and clients, and what others notice of them."""
