"""The pages of training runs: their script asks the API and draws.

The charts are those of ``calibrators.charts``, drawn in the browser by the libraries that
vl-convert carries.
"""

from __future__ import annotations

from fastapi import Request, Response

from service.web.components.layout import page, pages

router = pages()


@router.api_route("/runs", methods=["GET", "HEAD"])
def runs_page(request: Request) -> Response:
    """The list of runs."""
    return page(request, "runs.html")


@router.api_route("/runs/{name}", methods=["GET", "HEAD"])
def run_page(request: Request, name: str) -> Response:
    """The page of one run, whether or not there is one of this name: that is for the API to say."""
    return page(request, "run.html", {"name": name})
