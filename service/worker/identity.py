"""The names of worker processes, which say on which machine they run."""

from __future__ import annotations

import os
import secrets
import socket


def new_worker_id() -> str:
    """A name for this process as a worker: machine, process id, and a part that never returns."""
    return f"{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_of_this_machine(worker: str) -> bool:
    """Whether a worker of this name runs on this machine, or in this container."""
    return worker.rsplit("-", 2)[0] == _machine()


def _machine() -> str:
    return socket.gethostname()[:40]
