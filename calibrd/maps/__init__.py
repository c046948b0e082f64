"""Maps that are applied in this process."""
