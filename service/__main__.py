"""The commands of ``python -m service``, such as serve, worker, keys and backup."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what it writes is for its own user alone."""
    os.umask(0o077)
    # the imports take a second, in which Ctrl-C must already end the command without a word
    from service.cli.arguments import run

    return run(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    sys.exit(main())
