"""Pages for people: nothing from elsewhere, and no script but their own."""

from __future__ import annotations

from service.web import (
    about,
    aliases,
    calibrator,
    compare,
    home,
    job,
    jobs,
    keys,
    new_fit,
    reference,
    runs,
    sign_in,
    static_files,
    trying,
    version,
)

MODULES = (
    home,
    sign_in,
    calibrator,
    version,
    compare,
    aliases,
    trying,
    new_fit,
    jobs,
    job,
    runs,
    keys,
    about,
    reference,
    static_files,
)
ROUTERS = tuple(module.router for module in MODULES)
