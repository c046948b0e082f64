"""The page that lists fits: progress, results, errors, and a button to cancel each."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request, Response

from service.access.permissions import Scope
from service.dependencies import Joined
from service.fits import service as fits
from service.http.callers import Caller, needs
from service.http.paging import Cursor, paged, time_place
from service.storage.records import Fit, FitStatus
from service.web.components.forms import Sent
from service.web.components.layout import lead_to, page, pages

router = pages()

PAGE = 50


@dataclass(frozen=True)
class FitRow:
    """A fit as shown on pages; ``share`` is its progress from 0 to 1."""

    fit: Fit
    methods: str
    share: float
    doing: str

    @classmethod
    def of(cls, fit: Fit) -> FitRow:
        """Build the row of a fit."""
        methods = ", ".join(one["method"] for one in fit.order["methods"])
        return cls(fit, methods, _share(fit), _doing(fit))

    @property
    def may_stop(self) -> bool:
        """True if the fit can be cancelled."""
        return not (self.fit.status.is_final or self.fit.cancel_requested)

    @property
    def seconds(self) -> float | None:
        """The duration of the fit."""
        if self.fit.started_at is None or self.fit.finished_at is None:
            return None
        return self.fit.finished_at - self.fit.started_at


@router.api_route("/jobs", methods=["GET", "HEAD"], dependencies=needs(Scope.FIT))
def fits_page(request: Request, joined: Joined, caller: Caller, cursor: Cursor = None) -> Response:
    """Show the fits, newest first."""
    after = time_place(cursor or None)
    with joined.database.read() as store:
        shown = store.fits.affordable(caller.workspace, PAGE, after)
        found = store.fits.page(caller.workspace, shown + 1, after)
    listed = paged(found, shown, FitRow.of, lambda fit: (fit.created_at, fit.id))
    values = {"fit_rows": listed.items, "next": listed.next, "is_first_page": after is None}
    return page(request, "fits.html", values)


@router.post("/jobs/{id}/cancel", dependencies=needs(Scope.FIT))
def cancel_fit(request: Request, joined: Joined, caller: Caller, id: str, form: Sent) -> Response:
    """Cancel a fit, and redirect to its page or to the list."""
    with joined.database.write() as store:
        fits.cancel(store, caller, id)
    return lead_to(request, f"/jobs/{id}" if form.text("stay") else "/jobs")


def _share(fit: Fit) -> float:
    if fit.status is FitStatus.SUCCEEDED:
        return 1.0
    progress = fit.progress or {}
    within = float(progress.get("step", 0)) / max(1.0, float(progress.get("total", 1)))
    done = float(progress.get("methods_done", 0)) + within
    return min(1.0, done / max(1.0, float(progress.get("methods", 1))))


def _doing(fit: Fit) -> str:
    if fit.cancel_requested and not fit.status.is_final:
        return "being cancelled"
    if fit.status is FitStatus.QUEUED:
        return "waiting for a worker"
    progress = fit.progress or {}
    if fit.status is not FitStatus.RUNNING or "method" not in progress:
        return ""
    is_stepwise = progress.get("total", 1) > 1
    steps = f", step {progress['step']} of {progress['total']}" if is_stepwise else ""
    return f"{progress['method']}{steps}"
