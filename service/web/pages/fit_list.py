"""The page of fits: how they go on, why they failed, and a way to stop them."""

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
    """A fit as people see it; ``share`` of it is done."""

    fit: Fit
    methods: str
    share: float
    doing: str

    @classmethod
    def of(cls, fit: Fit) -> FitRow:
        """A fit in words."""
        methods = ", ".join(one["method"] for one in fit.order["methods"])
        return cls(fit, methods, _share(fit), _doing(fit))

    @property
    def may_stop(self) -> bool:
        """Whether a cancel would change anything."""
        return not (self.fit.status.is_final or self.fit.cancel_requested)

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        if self.fit.started_at is None or self.fit.finished_at is None:
            return None
        return self.fit.finished_at - self.fit.started_at


@router.api_route("/jobs", methods=["GET", "HEAD"], dependencies=needs(Scope.FIT))
def fits_page(request: Request, joined: Joined, caller: Caller, cursor: Cursor = None) -> Response:
    """Fits, newest first."""
    after = time_place(cursor or None)
    with joined.database.read() as store:
        shown = store.fits.affordable(caller.workspace, PAGE, after)
        found = store.fits.page(caller.workspace, shown + 1, after)
    listed = paged(found, shown, FitRow.of, lambda fit: (fit.created_at, fit.id))
    values = {"jobs": listed.items, "next": listed.next, "is_first_page": after is None}
    return page(request, "fits.html", values)


@router.post("/jobs/{id}/cancel", dependencies=needs(Scope.FIT))
def cancel_job(request: Request, joined: Joined, caller: Caller, id: str, form: Sent) -> Response:
    """Stop a fit; who was on its page comes back to it."""
    with joined.database.write() as store:
        fits.cancel(store, caller, id)
    return lead_to(request, f"/jobs/{id}" if form.text("stay") else "/jobs")


def _share(fit: Fit) -> float:
    if fit.status is FitStatus.SUCCEEDED:
        return 1.0
    told = fit.progress or {}
    within = float(told.get("step", 0)) / max(1.0, float(told.get("total", 1)))
    done = float(told.get("methods_done", 0)) + within
    return min(1.0, done / max(1.0, float(told.get("methods", 1))))


def _doing(fit: Fit) -> str:
    if fit.cancel_requested and not fit.status.is_final:
        return "is being cancelled"
    if fit.status is FitStatus.QUEUED:
        return "waits for a worker"
    told = fit.progress or {}
    if fit.status is not FitStatus.RUNNING or "method" not in told:
        return ""
    steps = f", step {told['step']} of {told['total']}" if told.get("total", 1) > 1 else ""
    return f"{told['method']}{steps}"
