"""The command line of the service, one module per command."""

PROGRAM = "python -m service"
