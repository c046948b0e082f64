"""The commands of ``calibrd``, one module per subject."""

INTERRUPTED = 130
