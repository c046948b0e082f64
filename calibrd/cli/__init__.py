"""The commands of ``calibrd``, a file for each subject."""

INTERRUPTED = 130
