"""Maps in formats of other runtimes."""
