"""The context that parts of a fit share with the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from calibrators.errors import FitCancelled, FitError, SmallSample
from calibrators.fitting.context import FitContext


@pytest.mark.parametrize(
    "made", [FitContext.without_progress, lambda whole: whole.part(0, 1, 2)], ids=["silent", "part"]
)
def test_parts_share_warnings_and_seconds(made: Callable[[FitContext], FitContext]) -> None:
    whole = FitContext()
    part = made(whole)
    part.warn(SmallSample, "few")
    part.seconds["smart"] = 1.5
    assert whole.warnings == [{"code": "small_sample", "message": "few"}]
    assert whole.seconds == {"smart": 1.5}


def test_a_fit_inside_keeps_its_own() -> None:
    whole = FitContext()
    inner = whole.inner()
    inner.warn(SmallSample, "few")
    inner.seconds["smart"] = 1.5
    assert (whole.warnings, whole.seconds) == ([], {})


def test_the_progress_of_a_part_is_a_part_of_the_progress() -> None:
    seen: list[tuple[int, int]] = []
    whole = FitContext(progress=lambda step, total, loss: seen.append((step, total)))
    part = whole.part(10, 20, 100)
    for step in range(1, 6):
        part.step(step, 5)
    assert seen == [(12, 100), (14, 100), (16, 100), (18, 100), (20, 100)]


def test_all_parts_can_be_cancelled() -> None:
    whole = FitContext(cancel=lambda: True)
    for part in (whole, whole.inner(), whole.without_progress(), whole.part(0, 1, 2)):
        with pytest.raises(FitCancelled):
            part.step(1, 2)
    with pytest.raises(FitCancelled):
        FitContext().inner(deadline=0.0).cancelled()


def test_devices_are_named_as_torch_names_them() -> None:
    assert FitContext("cuda:1").device == "cuda:1"
    with pytest.raises(FitError, match="device must be 'cpu', 'cuda' or 'cuda:N', got 'gpu'"):
        FitContext("gpu")
