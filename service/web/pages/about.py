"""The page about the service: health, workers, versions and settings."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response

from service.access.permissions import Scope
from service.dependencies import Joined, Parts
from service.fits.service import WORKER_IS_ALIVE
from service.http.callers import Caller
from service.maintenance.readiness import OK
from service.settings import Settings
from service.web.components.layout import page, pages

router = pages()

PACKAGES = ("calibrd", "numpy", "torch", "fastapi", "sqlalchemy", "vl-convert-python", "onnx")
ADDRESSES = ("database_url", "blobs_url", "sign_endpoint")


@router.api_route("/about", methods=["GET", "HEAD"])
def about_page(request: Request, joined: Joined, caller: Caller) -> Response:
    """Show health, workers and versions; administrators also see the settings."""
    health = joined.probe.read()
    workers = []
    if health.database == OK:
        with joined.database.read() as store:
            workers = store.workers.alive(WORKER_IS_ALIVE)
    values = {
        "health": health.model_dump(),
        "workers": workers,
        "versions": {"Python": platform.python_version(), **_versions()},
        "database": joined.database.url.get_backend_name(),
        "settings": _settings(joined) if caller.may(Scope.ADMIN) else None,
    }
    return page(request, "about.html", values)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _settings(joined: Parts) -> list[tuple[str, Any, str]]:
    """Return the name, value and description of each setting, with secrets removed from URLs."""
    settings = joined.settings
    return [
        (name, _shown(settings, name), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def _shown(settings: Settings, name: str) -> Any:
    value = getattr(settings, name)
    return without_secrets(value) if name in ADDRESSES and value else value


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query.

    >>> without_secrets("postgresql://me:secret@db.example:5432/calibrd?password=secret")
    'postgresql://db.example:5432/calibrd'
    >>> without_secrets("sqlite:////data/calibrd.db")
    'sqlite:////data/calibrd.db'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
