"""Load, cache and apply maps in this process."""
