"""Pages for people, rendered here: no script, nothing from elsewhere."""
