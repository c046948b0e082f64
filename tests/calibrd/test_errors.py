"""A problem becomes an error of the right class, with its code and hint."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from calibrd import errors
from calibrd.errors import CalibrdError, kind_of
from calibrd.models import Key
from calibrd.transport.flows import Response
from calibrd.transport.responses import error_of, header_of, member_of, records_of, report_of


def problem(code: str = "no_such_alias", status: int = 404) -> Response:
    body = (
        b'{"type": "urn:x", "title": "T", "status": %d, "detail": "m has no alias", '
        b'"code": "%s", "request_id": "r-1", "revision": 7}' % (status, code.encode())
    )
    return Response(status, {}, body)


def test_a_problem_becomes_an_error_with_all_its_fields() -> None:
    error = error_of(problem())
    assert type(error) is errors.NotFound
    assert (error.code, error.status, error.request_id) == ("no_such_alias", 404, "r-1")
    assert error.details == {"revision": 7}
    first, second = str(error).splitlines()
    assert first == "m has no alias (no_such_alias, request r-1)"
    assert second == f"hint: {error.hint}"
    assert "client.promote" in error.hint


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        ((400, 405, 406, 413, 414, 415, 422, 431), errors.Invalid),
        ((401,), errors.Unauthenticated),
        ((403,), errors.Forbidden),
        ((404,), errors.NotFound),
        ((408,), errors.TooSlow),
        ((409, 412), errors.Conflict),
        ((500, 501, 507), errors.ServerError),
        ((429, 502, 503, 504), errors.Unavailable),
    ],
)
def test_a_status_has_a_kind(statuses: tuple[int, ...], kind: type[errors.Refused]) -> None:
    assert [kind_of(status) for status in statuses] == [kind] * len(statuses)
    told = re.search(rf"{kind.__name__} +([\d, x]+):?", errors.__doc__ or "")
    assert told is None or told[1].startswith(("5xx", ", ".join(map(str, statuses))))


def test_a_code_of_a_newer_service_raises_the_error_of_its_status() -> None:
    error = error_of(problem("comes_next_year", 409))
    assert type(error) is errors.Conflict
    assert error.code == "comes_next_year"


@pytest.mark.parametrize(
    "error",
    [
        error_of(problem()),
        errors.FitFailed("dataset_gone", "it is gone", "fit_1"),
        errors.FitWasCancelled("fit_1"),
        errors.WaitedTooLong("fit_1", 2.5),
        errors.ServiceAway("nobody there"),
        errors.MaybeDone("nobody there; it may have been done"),
        errors.NotCalibrd("a page"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickle_and_copy(error: CalibrdError) -> None:
    error.add_note("a note")
    sent = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    for again in (sent, copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert again.args == error.args


@pytest.mark.parametrize(
    "look",
    [
        lambda: header_of(Response(200, {}, b""), "calibrd-version"),
        lambda: member_of(member_of({"parts": []}, "parts"), 0),
        lambda: records_of(Key, 3),
        lambda: report_of({"format": 2}),
        lambda: report_of([]),
    ],
)
def test_an_odd_response_is_not_from_calibrd(look) -> None:
    with pytest.raises(errors.NotCalibrd, match=r"the (JSON )?response"):
        look()
