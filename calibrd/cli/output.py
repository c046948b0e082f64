"""What a command says, and where: answers to stdout, all else to stderr."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TextIO

from calibrators import CalibrationError
from calibrators.error_codes import ERROR_CODES
from calibrators.report.json_form import to_plain
from calibrd.errors import CalibrdError, Refused
from calibrd.terminal import json_safe, printable


class CommandError(Exception):
    """What a user asked for cannot be done: why, and what to do instead."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class AfterVersion(Exception):
    """A version was made, and then its promotion went wrong."""

    def __init__(self, version: str, why: Exception) -> None:
        super().__init__(f"{version}: {why}")
        self.version = version
        self.why = why


class NotWritten(CommandError):
    """Stdout does not take the answer."""


class ClosedPipe(Exception):
    """Whoever read the answer has enough of it."""


@dataclasses.dataclass(frozen=True)
class Output:
    """Answers as text or, with ``json``, as one document.

    An answer that cannot be written is an error. Notes and errors are written where that is
    possible: the exit code says enough.
    """

    json: bool = False
    quiet: bool = False

    @property
    def bars(self) -> bool:
        """Whether progress bars are shown: to people, not in the log of a job."""
        return not self.quiet and sys.stderr is not None and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """Tell a person how it goes."""
        if not self.quiet:
            tell(text)

    def say(self, text: str = "") -> None:
        """A line of an answer that comes piece by piece; programs get the document instead."""
        if not self.json:
            _answer(_lines(text))

    def answer(self, document: Any, text: str) -> None:
        """What the command was run for."""
        self.document(document)
        self.say(text)

    def document(self, document: Any) -> None:
        """The answer for programs."""
        if self.json:
            _answer(_as_json(to_plain(_dates_as_text(document))))

    def error(self, told: dict[str, Any]) -> None:
        """What went wrong, in a line or two; as words also if the document finds no way out."""
        if self.json:
            try:
                self.document({"error": told})
            except (ClosedPipe, NotWritten):
                pass
            else:
                return
        asked = f" (request {told['request_id']})" if told["request_id"] else ""
        tell(f"error: {told['message']}{asked}")
        for note in told["notes"]:
            tell(f"note: {note}")
        if told["hint"]:
            tell(f"hint: {told['hint']}")


def take_any_text() -> None:
    """Let stdout and stderr write what their encoding lacks as ``\\xfc``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def tell(text: str) -> None:
    """Write a text to stderr, if it takes one."""
    try:
        _write(sys.stderr, f"{_lines(text)}\n")
    except (OSError, ValueError):
        _give_up(sys.stderr)


def _lines(text: str) -> str:
    return printable(text.replace("\r\n", "\n"), lines=True)


def finish() -> None:
    """Write what is left; ClosedPipe or NotWritten if stdout does not take it."""
    if sys.stdout is not None:
        _answer(None)


def _answer(text: str | None) -> None:
    try:
        _write(sys.stdout, "" if text is None else f"{text}\n")
    except BrokenPipeError as error:
        _give_up(sys.stdout)
        raise ClosedPipe from error
    except (OSError, ValueError) as error:
        _give_up(sys.stdout)
        raise NotWritten("not_written", f"stdout did not take the answer: {error}") from error


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        raise OSError("it is closed")
    stream.write(text)
    stream.flush()


def _give_up(stream: TextIO | None) -> None:
    """Python writes what is left once more at its end, and would choose the exit code if it cannot.

    A stream without a file behind it has nothing to write to there.
    """
    try:
        held = -1 if stream is None else stream.fileno()
    except (OSError, ValueError):
        return
    if held >= 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, held)
        os.close(nowhere)


def _as_json(plain: Any) -> str:
    """The document; in ASCII if the encoding of stdout lacks one of its letters."""
    text = json_safe(json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False))
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(plain, indent=2, allow_nan=False)
    return text


def told_of(error: BaseException) -> dict[str, Any]:
    """An error as the document that ``--json`` prints."""
    if isinstance(error, AfterVersion):
        told = told_of(error.why)
        words = f"{error.version} was made, but not promoted: {told['message']}"
        return {**told, "message": words, "version": error.version}
    message, request_id = _one_line(str(error)), None
    code = str(getattr(error, "code", ""))
    known = ERROR_CODES.get(code)
    hint = known.command if known and known.command else str(getattr(error, "hint", "") or "")
    match error:
        case KeyboardInterrupt():
            code, message = "interrupted", "interrupted by Ctrl-C"
        case Refused():
            message, request_id = _one_line(error.detail), error.request_id
        case CalibrdError():
            message = _one_line(str(error).partition("\nhint: ")[0])
        case CalibrationError() | CommandError():
            pass
        case ImportError():
            code = "not_installed"
        case OSError():
            code = "cannot_use_file"
            reason = error.strerror or str(error)
            message = _one_line(f"{error.filename}: {reason}" if error.filename else reason)
        case ValueError():
            code = "bad_argument"
        case _:
            code = "unexpected"
            message = f"{type(error).__name__}: {message}"
            hint = "this is a bug: run it again with --traceback, and report what that shows"
    return {
        "code": code,
        "message": message,
        "notes": [_one_line(note) for note in getattr(error, "__notes__", [])],
        "hint": hint or None,
        "request_id": request_id,
        "version": None,
    }


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns; what would break a line in a cell is escaped.

    >>> print(table(("name", "n"), [("a", 10), ("long", None)]))
    name  n
    a     10
    long
    """
    cells = [[*head], *(["" if one is None else printable(one) for one in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def minute(moment: datetime | None) -> str:
    """A point in time as a person reads it."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M")


def _dates_as_text(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case dict():
            return {key: _dates_as_text(one) for key, one in value.items()}
        case list() | tuple():
            return [_dates_as_text(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
        return {name: _dates_as_text(one) for name, one in held}
    return value


def _one_line(text: str) -> str:
    return " ".join(text.split())
