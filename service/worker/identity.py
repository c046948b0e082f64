"""Names of worker processes, which include the machine name."""

from __future__ import annotations

import os
import secrets
import socket


def new_worker_id() -> str:
    """Return a unique name for this process: machine, process id and a random part."""
    return f"{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_of_this_machine(worker: str) -> bool:
    """Return whether a worker with this name runs on this machine, or in this container."""
    return worker.rsplit("-", 2)[0] == _machine()


def _machine() -> str:
    return socket.gethostname()[:40]
