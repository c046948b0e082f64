"""Pages for people: nothing from elsewhere, and no script but their own."""

from __future__ import annotations

from service.web import about, home, jobs, keys, reference, runs, sign_in, static_files

MODULES = (home, sign_in, jobs, runs, keys, about, reference, static_files)
ROUTERS = tuple(module.router for module in MODULES)
