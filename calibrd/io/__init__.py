"""Convert arrays of any library, and read and write files in blocks."""
