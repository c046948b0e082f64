"""The commands of ``calibrd``, one file per subject."""

INTERRUPTED = 130
