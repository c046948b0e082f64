"""Commands of the service, run in this process or as an unprivileged user."""

from __future__ import annotations

import ctypes
import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout

from service.__main__ import main

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
Done = subprocess.CompletedProcess[str]


def as_a_plain_user() -> None:
    """Make file permissions apply to root as well."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def here(*arguments: object) -> Done:
    """Run a command in this process, for commands that do not change its state."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
