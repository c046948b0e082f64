"""Every code of the service has a class, and every class a code; errors say what can be done."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import service.errors
from calibrd import errors
from calibrd.errors import NAMED, CalibrdError, Refused, kind_of
from calibrd.models import Key
from calibrd.transport.flows import Answer
from calibrd.transport.responses import error_of, header_of, member_of, records_of, report_of
from service.http.problems import STATUSES

ROOT = Path(__file__).parents[2]
# /v2 answers without codes; the others are reached from the command line, in a worker or on a page
NOT_OVER_HTTP = (
    "service/cli",
    "service/serving/inference_protocol",
    "service/settings.py",
    "service/web",
    "service/worker",
    "service/maintenance/backup.py",
    "service/maintenance/archive_file.py",
    "service/comparisons/service.py",
    "service/fits/execution.py",
    "service/maintenance/sweep.py",
    "service/concurrency/task_process.py",
    "service/registry/reports/tasks.py",
    "service/storage/upgrade.py",
    "service/storage/schema_check.py",
    "service/maintenance/snapshot.py",
)
# whose errors the service passes on as 422
LIBRARY = (
    "adafocal/state",
    "adafocal/statistics",
    "archive",
    "base",
    "arrays",
    "data",
    "fitting/parameters",
    "registry",
    "segments",
)
LIBRARY_ERRORS = ("ArchiveError", "DataError", "ParameterError")
CODES_WITHOUT_A_LITERAL = {
    "nan": 422,  # a table in calibrators/arrays.py
    "infinite": 422,
    "no_finite_logit": 422,
    "request_header_fields_too_large": 431,  # the phrase of the status
}
CODES_NOT_OVER_HTTP = {
    "no_such_workspace",  # only the command line names one
    "bad_correct",  # of confidences, which are only given here
    "bad_fraction",  # CalibrationSet.split, in a worker
    "bad_rounding",  # nobody declares one over HTTP
    "dataset_gone",  # of a fit, in a worker
    "too_few_rows",
}


def calls_in(path: Path) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            yield name or getattr(node.func, "id", ""), node.args


def literal(arguments: list[ast.expr], place: int) -> str | None:
    found = arguments[place] if len(arguments) > place else None
    return found.value if isinstance(found, ast.Constant) and isinstance(found.value, str) else None


def codes_of_the_service() -> dict[str, set[int]]:
    """The statuses that each code can be answered with."""
    found: dict[str, set[int]] = defaultdict(set)
    for code, status in CODES_WITHOUT_A_LITERAL.items():
        found[code].add(status)
    for path in (ROOT / "service").rglob("*.py"):
        if str(path.relative_to(ROOT)).startswith(NOT_OVER_HTTP):
            continue
        for name, arguments in calls_in(path):
            kind = getattr(service.errors, name, None)
            if name == "Problem" and (code := literal(arguments, 1)):
                status = arguments[0].value if isinstance(arguments[0], ast.Constant) else None
                found[code] |= {status} if status else set()
            elif (inspect.isclass(kind) or name in LIBRARY_ERRORS) and (
                code := literal(arguments, 0)
            ):
                found[code].add(status_of(kind) if kind else 422)
    for module in LIBRARY:
        for name, arguments in calls_in(ROOT / "calibrators" / f"{module}.py"):
            place = {"reject_rows": 1}.get(name, 0 if name in LIBRARY_ERRORS else None)
            if place is not None and (code := literal(arguments, place)):
                found[code].add(422)
    return {code: found[code] for code in found.keys() - CODES_NOT_OVER_HTTP}


def status_of(kind: type[service.errors.ServiceError]) -> int:
    return next((STATUSES[one] for one in kind.__mro__ if one in STATUSES), 500)


CODES = codes_of_the_service()


def test_every_code_has_a_class_and_every_class_a_code() -> None:
    assert len(CODES) > 100
    assert sorted(CODES) == sorted(NAMED)


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_class_is_below_the_kinds_of_its_statuses(code: str) -> None:
    assert CODES[code] or code in ("method_not_allowed", "no_such_route")
    for status in CODES[code]:
        assert issubclass(NAMED[code], kind_of(status)), status
    assert NAMED[code].__doc__


def test_one_module_has_them_all() -> None:
    for kind in NAMED.values():
        assert getattr(errors, kind.__name__) is kind


def problem(code: str = "no_such_alias", status: int = 404) -> Answer:
    body = (
        b'{"type": "urn:x", "title": "T", "status": %d, "detail": "m has no alias", '
        b'"code": "%s", "request_id": "r-1", "revision": 7}' % (status, code.encode())
    )
    return Answer(status, {}, body)


def test_a_problem_becomes_its_error_with_all_it_says() -> None:
    error = error_of(problem())
    assert isinstance(error, errors.NoSuchAlias)
    assert isinstance(error, errors.NotFound)
    assert (error.code, error.status, error.request_id) == ("no_such_alias", 404, "r-1")
    assert error.details == {"revision": 7}
    first, second = str(error).splitlines()
    assert first == "m has no alias (no_such_alias, request r-1)"
    assert second == f"hint: {error.hint}"
    assert "client.promote" in error.hint


def test_a_code_of_a_newer_service_is_its_statuss_error() -> None:
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


def test_every_hint_is_a_short_line() -> None:
    for kind in (*NAMED.values(), *CalibrdError.__subclasses__(), *Refused.__subclasses__()):
        assert "\n" not in kind.hint
        assert len(kind.hint) < 120
        assert not kind.hint.endswith(".")


@pytest.mark.parametrize(
    "look",
    [
        lambda: header_of(Answer(200, {}, b""), "calibrd-version"),
        lambda: member_of(member_of({"parts": []}, "parts"), 0),
        lambda: records_of(Key, 3),
        lambda: report_of({"format": 2}),
        lambda: report_of([]),
    ],
)
def test_an_odd_answer_is_not_calibrds(look) -> None:
    with pytest.raises(errors.NotCalibrd, match="the answer"):
        look()
