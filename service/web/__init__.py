"""Pages for people: nothing from elsewhere, and no script but that of the runs' own."""
