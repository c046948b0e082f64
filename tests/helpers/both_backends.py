"""The backends on which a fault is injected."""

from __future__ import annotations

import pytest


def on(*backends: str) -> pytest.MarkDecorator:
    """Run a test on these backends."""
    return pytest.mark.parametrize("backend", backends, indirect=True)


on_both = on("fleet", "embedded")
