"""The page for trying a calibrator on a few rows: probabilities before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import Query, Request, Response

from calibrators.errors import CalibrationError
from calibrators.methods.identity import IdentityMap
from calibrators.methods.segmented import SegmentedMap
from service.access.permissions import Principal, Scope
from service.datasets.formats import Arrays
from service.datasets.formats.npy import Array
from service.dependencies import Joined, Parts
from service.errors import ServiceError
from service.http.callers import Caller, needs, parse
from service.registry import service as versions
from service.serving.apply_map import predict, top_classes
from service.serving.map_cache import Served
from service.storage.records import PRODUCTION
from service.storage.store import Store
from service.web.components.forms import Form, Sent
from service.web.components.layout import page, pages
from service.web.components.pasted_rows import MAX_ROWS, example_row, rows_of

router = pages()

PATH = "/calibrators/{name}/try"
MAX_CLASSES = 10
VERSIONS = 50

Ref = Annotated[str, Query(max_length=64)]


class Bar(NamedTuple):
    """A class with its probability before and after."""

    number: int
    before: float
    after: float


@dataclass(frozen=True)
class Tried:
    """A row: its most likely classes after calibration, and the total of all others."""

    bars: Sequence[Bar]
    rest: Bar | None
    before: Bar
    after: Bar

    @property
    def keeps_class(self) -> bool:
        """True if the most likely class is the same before and after."""
        return self.before.number == self.after.number


class MapReference(NamedTuple):
    """An alias or a number, and the version that it refers to."""

    name: str
    number: int


@router.api_route(PATH, methods=["GET", "HEAD"], dependencies=needs(Scope.PREDICT))
def try_page(
    request: Request, joined: Joined, caller: Caller, name: str, ref: Ref = ""
) -> Response:
    """Show the form for an alias or a version; the default is production."""
    return _page(request, joined, caller, name, Form({"ref": [ref]}))


@router.post(PATH, dependencies=needs(Scope.PREDICT))
async def try_rows(
    request: Request, joined: Joined, caller: Caller, name: str, form: Sent
) -> Response:
    """Show the probabilities of the entered rows, or of an example."""
    return await parse(request, _page, request, joined, caller, name, form, is_sent=True)


def _page(
    request: Request,
    joined: Parts,
    caller: Principal,
    name: str,
    form: Form,
    *,
    is_sent: bool = False,
) -> Response:
    with joined.database.read() as store:
        references = _references(store, caller, name)
    ref = form.text("ref") or (references[0].name if references else "")
    served = _served(joined, caller, name, ref) if ref else None
    values: dict[str, Any] = {
        "name": name,
        "ref": ref,
        "references": references,
        "served": served,
        "segments": _segments(served),
        "segment": form.text("segment"),
        "written": form.text("rows"),
        "tried": (),
        "warnings": (),
        "error": "",
        "most_rows": MAX_ROWS,
    }
    if is_sent and served is not None:
        values |= _results(served, form)
    status = HTTPStatus.UNPROCESSABLE_ENTITY if values["error"] else HTTPStatus.OK
    return page(request, "try_map.html", values, status=status)


def _results(served: Served, form: Form) -> dict[str, Any]:
    """Return the template values for the rows in a form, or an error if they are invalid."""
    written = form.text("rows")
    if form.text("example"):
        written = example_row(served.map.k, served.map.kind)
    try:
        rows, warnings = tried(served, written, form.text("segment"))
    except (ServiceError, CalibrationError) as error:
        return {"written": written, "error": str(error)}
    return {"written": written, "tried": rows, "warnings": warnings}


def tried(served: Served, text: str, segment: str = "") -> tuple[list[Tried], tuple[str, ...]]:
    """Return the rows in ``text`` before and after calibration, and warnings."""
    fitted = served.map
    arrays = Arrays(rows_of(text, fitted.k), declared=fitted.kind)
    before = predict(
        IdentityMap(k=fitted.k, kind=fitted.kind, **fitted.zeros._asdict()),
        arrays,
    ).probabilities
    if segment in _segments(served):
        arrays = arrays._replace(segments=np.full(len(arrays.values), segment))
    found = predict(fitted, arrays)
    rows = zip(before, found.probabilities, strict=True)
    return [_tried(*one) for one in rows], found.warnings


def _tried(before: Array, after: Array) -> Tried:
    """Return a row with all its classes if they are few, otherwise with the most likely ones."""
    shown = np.arange(len(after))
    if len(after) > MAX_CLASSES:
        shown = top_classes(after[np.newaxis], MAX_CLASSES)[0][0]
    bars = [_bar(one, before, after) for one in shown]
    others = len(after) - len(shown)
    left = (1 - float(one[shown].sum(dtype=np.float64)) for one in (before, after))
    return Tried(
        bars,
        Bar(others, *(max(0.0, one) for one in left)) if others else None,
        _bar(before.argmax(), before, after),
        _bar(after.argmax(), before, after),
    )


def _segments(served: Served | None) -> tuple[str, ...]:
    """Return the segments that a map was fitted on."""
    if served is None or not isinstance(served.map, SegmentedMap):
        return ()
    return served.map.segments


def _bar(number: np.intp, before: Array, after: Array) -> Bar:
    return Bar(int(number), float(before[number]), float(after[number]))


def _references(store: Store, caller: Principal, name: str) -> list[MapReference]:
    """Return aliases, production first, then versions, newest first."""
    calibrator = versions.calibrator_named(store, caller, name)
    aliases = sorted(store.aliases.all_of(calibrator.id), key=lambda one: one.name != PRODUCTION)
    numbers = store.calibrators.numbers(calibrator.id, VERSIONS)
    return [
        *(MapReference(one.name, one.version) for one in aliases),
        *(MapReference(str(one), one) for one in numbers),
    ]


def _served(joined: Parts, caller: Principal, name: str, ref: str) -> Served:
    return joined.maps.find(caller, name, ref) or joined.maps.load(caller, name, ref)
