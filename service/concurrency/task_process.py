"""A helper process that runs one slow task at a time, and is killed if a task takes too long.

Requests and replies are sent over its standard input and output, each preceded by its length in
8 bytes. The tasks are in ``service.registry.reports.tasks``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import orjson
import structlog

from service.errors import ServiceError, TooLarge, Unavailable

COMMAND = (sys.executable, "-m", "service.registry.reports.tasks")
START_SECONDS = 30.0
IDLE_SECONDS = 60.0  # an idle process occupies 100 MB
LENGTH_BYTES = 8
OUT_OF_MEMORY = "too_much_memory"
OK, FAILED = b"\0", b"\1"
TASK_FAILED = "task_failed"  # the code of a failure that the request did not cause

_log = structlog.get_logger("calibrd.tasks")


class TaskProcess:
    """A separate process for tasks, started by the first task.

    The process is killed after IDLE_SECONDS without a task; the next task starts another.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._running = threading.Lock()
        self._idle_clock: threading.Timer | None = None
        self._is_ended = False

    def run(self, task: str, request: dict[str, Any], seconds: float) -> bytes:
        """Return the result of a task.

        Raises Unavailable if the task takes longer than ``seconds`` or its process dies, and a
        ServiceError with the task's own code if the task fails.
        """
        with self._running:
            self._stop_idle_clock()
            try:
                return self._run(task, request, seconds)
            finally:
                self._start_idle_clock()

    def _run(self, task: str, request: dict[str, Any], seconds: float) -> bytes:
        limit = seconds if self._is_alive() else seconds + START_SECONDS
        reply = self._exchange(orjson.dumps({"task": task, **request}), limit)
        if reply[:1] == OK:
            return reply[1:]
        error = orjson.loads(reply[1:])
        _log.warning("task_failed", task=task, code=error["code"])
        kind = TooLarge if error["code"] == OUT_OF_MEMORY else ServiceError
        raise kind(error["code"], error["message"])

    def end(self) -> None:
        """Kill the process, and never start another."""
        with self._starting:
            self._is_ended = True
        self._stop_idle_clock()
        self.close()

    def _start_idle_clock(self) -> None:
        if self._is_ended:
            return
        self._idle_clock = threading.Timer(IDLE_SECONDS, self._end_idle)
        self._idle_clock.daemon = True
        self._idle_clock.start()

    def _stop_idle_clock(self) -> None:
        if self._idle_clock is not None:
            self._idle_clock.cancel()

    def _end_idle(self) -> None:
        if self._running.acquire(blocking=False):  # otherwise a task has just begun
            try:
                self.close()
            finally:
                self._running.release()

    def close(self) -> None:
        """Kill the process; the next task starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def _exchange(self, request: bytes, limit: float) -> bytes:
        process = self._started()
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            process.kill()

        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        clock = threading.Timer(limit, kill)
        clock.start()
        try:
            write_message(process.stdin, request)
            return read_message(process.stdout)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            why = f"took longer than {limit:g} seconds" if killed.is_set() else "lost its process"
            _log.warning("task_process_lost", why=why)
            raise Unavailable("took_too_long", f"the task was aborted because it {why}") from error
        except BaseException:
            self.close()  # an unread reply must not be mistaken for the reply to the next task
            raise
        finally:
            clock.cancel()
            clock.join()
            if killed.is_set():
                self.close()

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _started(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._is_ended:
                raise Unavailable("shutting_down", "the service is shutting down; try again")
            if self._process is None or not self._is_alive():
                self.close()
                self._process = subprocess.Popen(  # noqa: S603
                    COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=Path(__file__).parents[2],
                    start_new_session=True,
                )
            return self._process


def write_message(stream: IO[bytes], content: bytes) -> None:
    """Write a message, preceded by its length."""
    stream.write(len(content).to_bytes(LENGTH_BYTES, "little"))
    stream.write(content)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes:
    """Return the next message; raise EOFError if there is none."""
    length = int.from_bytes(_exactly(stream, LENGTH_BYTES), "little")
    return _exactly(stream, length)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise EOFError
    return content
