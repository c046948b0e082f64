"""What a response means: its JSON, or the error that it tells of."""

from __future__ import annotations

import io
import json
import math
import time
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from calibrators import DataError, Report
from calibrd.errors import NotCalibrd, Refused, kind_of
from calibrd.models import Record, read
from calibrd.transport.flows import Answer

SHOWN = 200
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
TOO_MANY = 429


def document_of(answer: Answer) -> Any:
    """The JSON of a response."""
    try:
        return json.loads(answer.content)
    except RecursionError:
        raise NotCalibrd("the answer is JSON, but nested too deeply") from None
    except ValueError as error:
        shown = answer.content[:SHOWN].decode("utf-8", "replace")
        raise NotCalibrd(f"the answer is not JSON, but begins with {shown!r}") from error


def member_of(document: Any, name: str | int) -> Any:
    """A member of the service's JSON."""
    try:
        return document[name]
    except (TypeError, KeyError, IndexError) as error:
        raise NotCalibrd(f"the answer is JSON, but has no {name!r}") from error


def header_of(answer: Answer, name: str) -> str:
    """A header that the service always sends."""
    if name not in answer.headers:
        raise NotCalibrd(f"the answer has no header {name!r}")
    return answer.headers[name]


def array_of(answer: Answer) -> NDArray[Any]:
    """The array of a response in npy."""
    try:
        file = io.BytesIO(answer.content)
        read_header = HEADERS[npy.read_magic(file)]
        shape, _, dtype = read_header(file)
        if math.prod(shape) * dtype.itemsize != len(answer.content) - file.tell():
            raise ValueError("its header tells of another size")
        file.seek(0)
        return np.asarray(npy.read_array(file, allow_pickle=False))
    except (ValueError, KeyError, TypeError, OSError, EOFError, RecursionError) as error:
        shown = answer.content[:SHOWN].decode("utf-8", "replace")
        raise NotCalibrd(f"the answer is not npy, but begins with {shown!r}") from error


def record_of(kind: type[Record], document: Any, **more: Any) -> Record:
    """A record from the service's JSON, with ``more`` fields that were read already."""
    try:
        return read(kind, document, **more)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        name = kind.__name__.lower()
        raise NotCalibrd(f"the answer is JSON, but not that of a {name}: {error}") from error


def records_of(kind: type[Record], document: Any) -> list[Record]:
    """The records of a list in the service's JSON."""
    if not isinstance(document, list):
        raise NotCalibrd(f"the answer is JSON, but no list of {kind.__name__.lower()}s")
    return [record_of(kind, one) for one in document]


def report_of(document: Any) -> Report:
    """A report from the service's JSON."""
    try:
        return Report.from_dict(document)
    except (DataError, KeyError, OverflowError, RecursionError) as error:
        raise NotCalibrd(f"the answer is JSON, but not that of a report: {error}") from error


def page_of(kind: type[Record], answer: Answer) -> tuple[list[Record], str | None]:
    """The records of a page of a list, and where the next page begins."""
    document = document_of(answer)
    items, after = member_of(document, "items"), member_of(document, "next")
    return records_of(kind, items), after


def seconds_to_wait(answer: Answer) -> float:
    """What Retry-After asks for: seconds, or a date."""
    said = answer.headers.get("retry-after", "")
    try:
        return max(0.0, float(said) if said.strip().isdigit() else _seconds_until(said))
    except (ValueError, TypeError):
        return 0.0


def _seconds_until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time.time()


def error_of(answer: Answer) -> Refused | NotCalibrd | None:
    """The error that a response tells of, if it tells of one."""
    if answer.status < 300 or answer.status == 304:
        return None
    if answer.status < 400:
        target = answer.headers.get("location", "another place")
        return NotCalibrd(f"the service's URL leads on to {target}: give the URL it leads to")
    try:
        problem = json.loads(answer.content)
        code, detail = str(problem.pop("code")), str(problem.pop("detail"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _without_problem(answer)
    kind = kind_of(answer.status)
    request_id = problem.pop("request_id", None)
    request_id = None if request_id is None else str(request_id)
    for name in ("type", "title", "status"):
        problem.pop(name, None)
    return kind(code, detail, status=answer.status, request_id=request_id, details=problem)


def _without_problem(answer: Answer) -> Refused | NotCalibrd:
    """A HEAD, or somebody who stands before the service."""
    request_id = answer.headers.get("x-request-id")
    if answer.status >= 500 or answer.status == TOO_MANY or request_id is not None:
        code = f"status_{answer.status}"
        sentence = f"the service answered with status {answer.status} and no more"
        return kind_of(answer.status)(code, sentence, status=answer.status, request_id=request_id)
    shown = answer.content[:SHOWN].decode("utf-8", "replace")
    return NotCalibrd(
        f"what answers here is not a calibrd service: status {answer.status}, {shown!r}"
    )
