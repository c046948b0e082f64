"""Convert arrays from any library, and read and write files in blocks."""
