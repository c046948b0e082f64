"""A process beside the API for one slow task after the other, killed if one takes too long.

Requests and answers travel over its standard input and output, each behind its length in 8 bytes.
What the process can do is in ``service.registry.reports.tasks``.
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
LENGTH_BYTES = 8
OUT_OF_MEMORY = "too_much_memory"
OK, FAILED = b"\0", b"\1"
TASK_FAILED = "task_failed"  # the code of a failure that is no fault of the request

_log = structlog.get_logger("calibrd.tasks")


class TaskProcess:
    """Runs tasks in a process of its own, started when the first one comes."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._is_ended = False

    def run(self, task: str, request: dict[str, Any], seconds: float) -> bytes:
        """Return what a task gives.

        Raises Unavailable if it takes longer than ``seconds`` or its process dies, and a
        ServiceError with the task's own code if it fails.
        """
        limit = seconds if self._is_alive() else seconds + START_SECONDS
        answer = self._answer(orjson.dumps({"task": task, **request}), limit)
        if answer[:1] == OK:
            return answer[1:]
        error = orjson.loads(answer[1:])
        _log.warning("task_failed", task=task, code=error["code"])
        kind = TooLarge if error["code"] == OUT_OF_MEMORY else ServiceError
        raise kind(error["code"], error["message"])

    def end(self) -> None:
        """End the process, and start no other."""
        with self._starting:
            self._is_ended = True
        self.close()

    def close(self) -> None:
        """End the process; the next task starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def _answer(self, request: bytes, limit: float) -> bytes:
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
            why = f"took longer than {limit:g} seconds" if killed.is_set() else "ended its process"
            _log.warning("task_process_lost", why=why)
            raise Unavailable("took_too_long", f"this {why}, and was given up") from error
        except BaseException:
            self.close()  # an answer that nobody reads must not be taken for the next one's
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
    """Write a message behind its length."""
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
