"""Worker processes that run fits, and their supervisor."""
