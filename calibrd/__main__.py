"""``python -m calibrd``, and the command ``calibrd``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from calibrd.cli import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    try:
        # the imports take a moment, in which Ctrl-C must already end the command without a word
        from calibrd.cli.arguments import run
    except KeyboardInterrupt:
        return INTERRUPTED
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
