"""The home page: calibrators, their effect, and running fits."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from service.access.permissions import Principal, Scope
from service.datasets.service import Retention
from service.dependencies import Joined
from service.fits.sample import fit_sample
from service.http.callers import Caller, needs, principal_of
from service.http.middleware.csrf import wants_page
from service.http.paging import Cursor, name_place, paged
from service.storage.records import FitStatus
from service.storage.store import Store
from service.web.components.ece_chart import chart_scale, ece_chart
from service.web.components.layout import lead_to, page, pages
from service.web.pages.fit_list import FitRow

router = pages()

CALIBRATORS = 50
FITS = 5


@router.api_route("/", methods=["GET", "HEAD"])
def home(
    request: Request,
    joined: Joined,
    cursor: Cursor = None,
    prefix: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Show calibrators by name, with their production versions; redirect programs to /docs."""
    if not wants_page(request.scope):
        return lead_to(request, "/docs", status=307)
    caller, prefix = principal_of(request.scope), prefix.strip().lower()
    after = name_place(cursor or None)
    with joined.database.read() as store:
        found = store.overview.calibrators(caller.workspace, CALIBRATORS + 1, after, prefix=prefix)
        fit_rows = _open_fits(store, caller)
    listed = paged(found, CALIBRATORS, lambda one: one, lambda one: one.name)
    scale = chart_scale(listed.items)
    values = {
        "rows": [(one, ece_chart(one, scale)) for one in listed.items],
        "next": listed.next,
        "prefix": prefix,
        "fit_rows": fit_rows,
        "is_first_page": after is None,
    }
    return page(request, "home.html", values)


@router.post("/sample", dependencies=needs(Scope.FIT))
def load_sample(request: Request, joined: Joined, caller: Caller) -> Response:
    """Submit a fit on the bundled sample, and redirect to its page."""
    fit = fit_sample(
        joined.database,
        joined.datasets,
        caller,
        spool=joined.spool,
        keeping=Retention(days=joined.settings.dataset_days or None),
        most_open=joined.settings.max_open_fits,
    )
    return lead_to(request, f"/jobs/{fit.id}#submitted")


def _open_fits(store: Store, caller: Principal) -> list[FitRow]:
    """Return running fits, then queued ones."""
    if not caller.may(Scope.FIT):
        return []
    # one query per status, so that an index finds and sorts the rows
    running, queued = (
        store.fits.page(caller.workspace, FITS, None, status=status)
        for status in (FitStatus.RUNNING, FitStatus.QUEUED)
    )
    return [FitRow.of(fit) for fit in (running + queued)[:FITS]]
