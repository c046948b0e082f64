"""The page of one fit: progress and result."""

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
    """Show a fit; the page updates itself and finally redirects to the result."""
    with joined.database.read() as store:
        fit = fits.find(store, caller, id)
        data = store.datasets.get(caller.workspace, fit.dataset)
        other = fit.evaluation and store.datasets.get(caller.workspace, fit.evaluation)
        waits = fit.status is FitStatus.QUEUED
        has_worker = not waits or bool(store.workers.alive(WORKER_IS_ALIVE))
    values = {
        "row": FitRow.of(fit),
        "methods": [_with_params(one) for one in fit.order["methods"]],
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
    """Return the path of the result; empty without versions or with a recommendation."""
    if not fit.versions or fit.recommendation:
        return ""
    calibrator = f"/calibrators/{fit.calibrator_name}"
    return calibrator if len(fit.versions) > 1 else f"{calibrator}/versions/{fit.versions[0]}"


def _with_params(spec: Mapping[str, Any]) -> str:
    """Return a method with its parameters as text."""
    params = ", ".join(f"{name}={json.dumps(value)}" for name, value in spec["params"].items())
    return f"{spec['method']} ({params})" if params else str(spec["method"])
