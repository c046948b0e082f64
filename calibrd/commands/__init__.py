"""The commands of ``calibrd``, a file for each subject."""
