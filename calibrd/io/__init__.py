"""Arrays and files of every kind, read and written in blocks."""
