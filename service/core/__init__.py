"""Use cases: what the service does, in short transactions, with no SQL and no framework."""
