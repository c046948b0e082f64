"""One module for each page of the dashboard."""

from __future__ import annotations

from service.web.components import static_files
from service.web.pages import (
    about,
    alias,
    api_reference,
    calibrator,
    compare,
    fit_detail,
    fit_list,
    home,
    keys,
    new_fit,
    runs,
    sign_in,
    try_map,
    version,
)

MODULES = (
    home,
    sign_in,
    calibrator,
    version,
    compare,
    alias,
    try_map,
    new_fit,
    fit_list,
    fit_detail,
    runs,
    keys,
    about,
    api_reference,
    static_files,
)
ROUTERS = tuple(module.router for module in MODULES)
