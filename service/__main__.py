"""The commands of the service, such as serve, worker, keys and backup.

Run them as ``python -m service COMMAND`` or, if ``calibrd-server`` is installed, as
``calibrd COMMAND``.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence

from service.cli import PROGRAM

INTERRUPTED = 130
# imports create no garbage: collecting at the default rate takes a sixth of the startup time
GC_THRESHOLD = 100_000


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run a command; files that it creates are readable only by the current user."""
    os.umask(0o077)
    gc.set_threshold(GC_THRESHOLD)
    # the imports take a second, during which Ctrl-C must exit without a traceback
    from service.cli.arguments import run

    return run(arguments, program)


def calibrd_command(arguments: Sequence[str]) -> int:
    """Run a command as ``calibrd COMMAND``: the entry point of ``calibrd-server``."""
    _exit_on_interrupt()
    return main(arguments, "calibrd")


def _exit_on_interrupt() -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


if __name__ == "__main__":
    _exit_on_interrupt()
    sys.exit(main())
