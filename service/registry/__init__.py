"""Calibrators and their versions: register, find, describe."""
