"""The pages of the dashboard, one module each, discovered in this folder."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from fastapi import APIRouter


def page_routers() -> list[APIRouter]:
    """Return the router of every page."""
    return [import_module(f"{__name__}.{one.name}").router for one in iter_modules(__path__)]
