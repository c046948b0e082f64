"""Aliases: promote, roll back, and the history of every move."""
