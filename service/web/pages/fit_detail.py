"""The page of one fit: how it goes on, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from calibrators.error_codes import ERROR_CODES
from service.access.permissions import Scope
from service.dependencies import Joined
from service.fits import service as fits
from service.fits.service import WORKER_IS_ALIVE
from service.http.callers import Caller, needs
from service.storage.records import Fit, FitStatus
from service.web.components.layout import page, pages
from service.web.pages.fit_list import FitRow

router = pages()


@router.api_route("/jobs/{id}", methods=["GET", "HEAD"], dependencies=needs(Scope.FIT))
def fit_page(request: Request, joined: Joined, caller: Caller, id: str) -> Response:
    """One fit; while it goes on, its script follows it to what it makes."""
    with joined.database.read() as store:
        fit = fits.find(store, caller, id)
        data = store.datasets.get(caller.workspace, fit.dataset)
        other = fit.evaluation and store.datasets.get(caller.workspace, fit.evaluation)
        waits = fit.status is FitStatus.QUEUED
        has_worker = not waits or bool(store.workers.alive(WORKER_IS_ALIVE))
    values = {
        "job": FitRow.of(fit),
        "methods": [_told(one) for one in fit.order["methods"]],
        "data": data,
        "evaluation": other,
        "has_worker": has_worker,
        "result": result_path(fit),
        "advice": _advice(fit.error["code"]) if fit.error else "",
    }
    return page(request, "fit.html", values)


def _advice(code: str) -> str:
    return ERROR_CODES[code].page if code in ERROR_CODES else ""


def result_path(fit: Fit) -> str:
    """Where to go on to what a fit has made; empty while there is nothing, or if it advises."""
    if not fit.versions or fit.recommendation:
        return ""
    calibrator = f"/calibrators/{fit.calibrator_name}"
    return calibrator if len(fit.versions) > 1 else f"{calibrator}/versions/{fit.versions[0]}"


def _told(ordered: Mapping[str, Any]) -> str:
    """A method with the parameters that were given."""
    given = ", ".join(f"{name}={json.dumps(value)}" for name, value in ordered["params"].items())
    return f"{ordered['method']} ({given})" if given else str(ordered["method"])
