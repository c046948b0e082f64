"""What the command line does: each verb has its file."""

PROGRAM = "python -m service"
