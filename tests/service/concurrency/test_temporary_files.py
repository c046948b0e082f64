"""Files of killed processes are deleted, those of live processes are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from service.concurrency.temporary_files import new_file, remove_left_behind

KILLED = """
import os, signal, sys
from pathlib import Path
from service.concurrency.temporary_files import new_file
file = new_file(Path(sys.argv[1]))
if sys.argv[2] == "exec":  # as a worker that restarts itself
    os.execv(sys.executable, [sys.executable, "-c", "pass"])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_processes_that_ended_are_deleted(tmp_path: Path) -> None:
    """A cancelled fit used to leave its copy of a dataset in /tmp for ever."""
    for how in ("kill", "exec"):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), how], check=False)
    with new_file(tmp_path) as mine:
        assert len(list(tmp_path.iterdir())) == 3
        assert remove_left_behind(tmp_path) == 2
        assert [str(path) for path in tmp_path.iterdir()] == [mine.name]
