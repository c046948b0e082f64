"""Output of commands: results to stdout, everything else to stderr."""

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
    """A command cannot be run; ``hint`` suggests what to do instead."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class PromotionFailed(Exception):
    """A version was created, but its promotion failed."""

    def __init__(self, version: str, why: Exception) -> None:
        super().__init__(f"{version}: {why}")
        self.version = version
        self.why = why


class NotWritten(CommandError):
    """The result cannot be written to stdout."""


class ClosedPipe(Exception):
    """The reader of stdout has closed the pipe."""


@dataclasses.dataclass(frozen=True)
class Output:
    """Writer of results, as text or, with ``json``, as one document.

    If a result cannot be written, an error is raised. Notes and errors that cannot be written are
    dropped, because the exit code still reports the outcome.
    """

    json: bool = False
    quiet: bool = False

    @property
    def bars(self) -> bool:
        """True if progress bars are shown, which is the case on terminals."""
        return not self.quiet and sys.stderr is not None and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """Write a note to stderr, unless quiet."""
        if not self.quiet:
            write_stderr(text)

    def say(self, text: str = "") -> None:
        """Print a line of a text result; with ``json``, print nothing."""
        if not self.json:
            _answer(_lines(text))

    def answer(self, document: Any, text: str) -> None:
        """Print the result: the document with ``json``, else the text."""
        self.document(document)
        self.say(text)

    def document(self, document: Any) -> None:
        """Print the document if ``json`` is set."""
        if self.json:
            _answer(_as_json(to_plain(_dates_as_text(document))))

    def error(self, document: dict[str, Any]) -> None:
        """Print an error in one or two lines, as text if the JSON document cannot be written."""
        if self.json:
            try:
                self.document({"error": document})
            except (ClosedPipe, NotWritten):
                pass
            else:
                return
        request = f" (request {document['request_id']})" if document["request_id"] else ""
        write_stderr(f"error: {document['message']}{request}")
        for note in document["notes"]:
            write_stderr(f"note: {note}")
        if document["hint"]:
            write_stderr(f"hint: {document['hint']}")


def escape_unencodable() -> None:
    r"""Make stdout and stderr escape characters that they cannot encode, such as ``\xfc``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def write_stderr(text: str) -> None:
    """Write text to stderr, if possible."""
    try:
        _write(sys.stderr, f"{_lines(text)}\n")
    except (OSError, ValueError):
        _give_up(sys.stderr)


def _lines(text: str) -> str:
    return printable(text.replace("\r\n", "\n"), lines=True)


def finish() -> None:
    """Flush stdout; raise ClosedPipe or NotWritten if that fails."""
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
        raise NotWritten("not_written", f"cannot write the result to stdout: {error}") from error


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        raise OSError("it is closed")
    stream.write(text)
    stream.flush()


def _give_up(stream: TextIO | None) -> None:
    """Redirect a stream to the null device, unless it has no file descriptor.

    Python flushes the stream at exit; a failure then would change the exit code.
    """
    try:
        descriptor = -1 if stream is None else stream.fileno()
    except (OSError, ValueError):
        return
    if descriptor >= 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


def _as_json(plain: Any) -> str:
    """Return the document as JSON, in ASCII if stdout cannot encode all of its characters."""
    text = json_safe(json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False))
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(plain, indent=2, allow_nan=False)
    return text


def error_document(error: BaseException) -> dict[str, Any]:
    """Return the document that ``--json`` prints for an error."""
    if isinstance(error, PromotionFailed):
        inner = error_document(error.why)
        combined = f"{error.version} was created, but not promoted: {inner['message']}"
        return {**inner, "message": combined, "version": error.version}
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
            hint = "this is a bug: run the command again with --traceback and report the output"
    return {
        "code": code,
        "message": message,
        "notes": [_one_line(note) for note in getattr(error, "__notes__", [])],
        "hint": hint or None,
        "request_id": request_id,
        "version": None,
    }


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns; control characters in cells are escaped.

    >>> print(table(("name", "n"), [("a", 10), ("long", None)]))
    name  n
    a     10
    long
    """
    cells = [[*head], *(["" if one is None else printable(one) for one in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def minute(moment: datetime | None) -> str:
    """Return a time as text, to the minute; empty for None."""
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
