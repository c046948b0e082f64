"""Export of maps to formats of other runtimes."""
