"""HTTP: routes, what stands before them, and the form of every answer."""
