"""Export of maps to the formats of other runtimes."""
