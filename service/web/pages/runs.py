"""The pages of training runs, drawn by a script with data from the API.

The charts come from ``calibrators.charts`` and are drawn in the browser by the libraries that
vl-convert bundles.
"""

from __future__ import annotations

from fastapi import Request, Response

from service.web.components.layout import page, pages

router = pages()


@router.api_route("/runs", methods=["GET", "HEAD"])
def runs_page(request: Request) -> Response:
    """Show the list of runs."""
    return page(request, "runs.html")


@router.api_route("/runs/{name}", methods=["GET", "HEAD"])
def run_page(request: Request, name: str) -> Response:
    """Show the page of a run; if there is no such run, its script reports that."""
    return page(request, "run.html", {"name": name})
