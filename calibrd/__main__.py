"""Entry point of ``python -m calibrd`` and the ``calibrd`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from calibrd.cli import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of the SDK or the installed server; return its exit code."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        # the imports take a moment, and Ctrl-C must end the command silently even then
        from calibrd.cli.arguments import run
        from calibrd.cli.server import server_command

        command = server_command(words) or run
    except KeyboardInterrupt:
        return INTERRUPTED
    return command(words)


if __name__ == "__main__":
    sys.exit(main())
