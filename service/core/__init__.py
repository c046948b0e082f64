"""Use cases: what the service does, with no HTTP words, no SQL and no commit."""
