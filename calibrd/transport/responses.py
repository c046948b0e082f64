"""Parse the JSON, arrays and errors of responses; raise NotCalibrd if they are malformed."""

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
from calibrd.transport.flows import Response

SHOWN = 200
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
TOO_MANY = 429


def document_of(response: Response) -> Any:
    """Return the JSON of a response."""
    try:
        return json.loads(response.content)
    except RecursionError:
        raise NotCalibrd("the response is JSON, but nested too deeply") from None
    except ValueError as error:
        shown = response.content[:SHOWN].decode("utf-8", "replace")
        raise NotCalibrd(f"the response is not JSON; it begins with {shown!r}") from error


def member_of(document: Any, name: str | int) -> Any:
    """Return a member of the service's JSON."""
    try:
        return document[name]
    except (TypeError, KeyError, IndexError) as error:
        raise NotCalibrd(f"the JSON response has no member {name!r}") from error


def header_of(response: Response, name: str) -> str:
    """Return a header that the service always sends."""
    if name not in response.headers:
        raise NotCalibrd(f"the response has no header {name!r}")
    return response.headers[name]


def array_of(response: Response) -> NDArray[Any]:
    """Return the array of an npy response."""
    try:
        file = io.BytesIO(response.content)
        read_header = HEADERS[npy.read_magic(file)]
        shape, _, dtype = read_header(file)
        if math.prod(shape) * dtype.itemsize != len(response.content) - file.tell():
            raise ValueError("its header states a different size")
        file.seek(0)
        return np.asarray(npy.read_array(file, allow_pickle=False))
    except (ValueError, KeyError, TypeError, OSError, EOFError, RecursionError) as error:
        shown = response.content[:SHOWN].decode("utf-8", "replace")
        raise NotCalibrd(f"the response is not npy; it begins with {shown!r}") from error


def record_of(kind: type[Record], document: Any, **more: Any) -> Record:
    """Build a record from the service's JSON; fields in ``more`` are already parsed."""
    try:
        return read(kind, document, **more)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        name = kind.__name__.lower()
        raise NotCalibrd(f"the response is JSON, but not a valid {name}: {error}") from error


def records_of(kind: type[Record], document: Any) -> list[Record]:
    """Build the records of a list in the service's JSON."""
    if not isinstance(document, list):
        raise NotCalibrd(f"the response is JSON, but not a list of {kind.__name__.lower()}s")
    return [record_of(kind, one) for one in document]


def report_of(document: Any) -> Report:
    """Return the report in the service's JSON."""
    try:
        return Report.from_dict(document)
    except (DataError, KeyError, OverflowError, RecursionError) as error:
        raise NotCalibrd(f"the response is JSON, but not a valid report: {error}") from error


def page_of(kind: type[Record], response: Response) -> tuple[list[Record], str | None]:
    """Return the records of a page, and the cursor of the next page or None."""
    document = document_of(response)
    items, cursor = member_of(document, "items"), member_of(document, "next")
    return records_of(kind, items), cursor


def seconds_to_wait(response: Response) -> float:
    """Return the number of seconds given by the Retry-After header; 0 if there is none."""
    value = response.headers.get("retry-after", "")
    try:
        return max(0.0, float(value) if value.strip().isdigit() else _seconds_until(value))
    except (ValueError, TypeError):
        return 0.0


def _seconds_until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp() - time.time()


def error_of(response: Response) -> Refused | NotCalibrd | None:
    """Return the error that a response reports, or None."""
    if response.status < 300 or response.status == 304:
        return None
    if response.status < 400:
        target = response.headers.get("location", "another URL")
        return NotCalibrd(f"the service's URL redirects to {target}: use that URL")
    try:
        problem = json.loads(response.content)
        code, detail = str(problem.pop("code")), str(problem.pop("detail"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _without_problem(response)
    kind = kind_of(response.status)
    request_id = problem.pop("request_id", None)
    request_id = None if request_id is None else str(request_id)
    for name in ("type", "title", "status"):
        problem.pop(name, None)
    return kind(code, detail, status=response.status, request_id=request_id, details=problem)


def _without_problem(response: Response) -> Refused | NotCalibrd:
    """Return the error for a response without a problem document (to HEAD, or from a proxy)."""
    request_id = response.headers.get("x-request-id")
    if response.status >= 500 or response.status == TOO_MANY or request_id is not None:
        code = f"status_{response.status}"
        sentence = f"the service responded with status {response.status} and no details"
        return kind_of(response.status)(
            code, sentence, status=response.status, request_id=request_id
        )
    shown = response.content[:SHOWN].decode("utf-8", "replace")
    return NotCalibrd(
        f"this is not a calibrd service: it responded with status {response.status}, {shown!r}"
    )
