"""Shutdown of a service whose threads are still working."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from helpers.live_service import running

BUSY = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
ThreadPoolExecutor(1).submit(time.sleep, 120)  # as if it inspected a large upload
from service.__main__ import main
sys.exit(main())
"""


def test_a_busy_thread_does_not_delay_shutdown(tmp_path: Path) -> None:
    program = (sys.executable, "-c", BUSY)
    with running(tmp_path, "--workers", "0", program=program) as started:
        began = time.monotonic()
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(60) == 0
    assert time.monotonic() - began < 30
