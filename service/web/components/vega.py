"""The chart library for browsers: Vega, Vega-Lite and Vega-Embed in one file, bundled once."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

from calibrators.charts.theme import VERSION

BUNDLE_SECONDS = 120
# runs in another process, because bundling in this one would block all requests for seconds
BUNDLING = (
    "import sys, vl_convert; "
    "sys.stdout.buffer.write(vl_convert.javascript_bundle(vl_version=sys.argv[1]).encode())"
)
# Vega-Lite refers to an older Vega than the bundled one, which would log warnings
NAMED, BUNDLED = b"/schema/vega/v5.json", b"/schema/vega/v6.json"
NOT_INSTALLED = b"window.calibrdNoCharts = true;\n"


async def library() -> bytes:
    """Return the library as a script, or a script that sets a flag if it is not installed."""
    if not _is_installed():
        return NOT_INSTALLED
    try:
        return await asyncio.shield(asyncio.wrap_future(_bundle()))
    except (OSError, subprocess.SubprocessError):
        _bundle.cache_clear()  # retry on the next request
        raise


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec("vl_convert") is not None


@cache
def _bundle() -> Future[bytes]:
    """Start bundling on a dedicated thread, so that waiting requests do not occupy threads."""
    return ThreadPoolExecutor(1, thread_name_prefix="bundle").submit(_bundled)


def _bundled() -> bytes:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", BUNDLING, VERSION],
        capture_output=True,
        timeout=BUNDLE_SECONDS,
        check=True,
    )
    return done.stdout.replace(NAMED, BUNDLED)
