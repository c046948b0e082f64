"""Request bodies: which are refused, and what a refusal keeps in memory."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.fits.schemas import FitIn
from service.http.schemas import MAX_UNKNOWN_FIELDS


@pytest.mark.parametrize("place", ["body", "tags"])
def test_refusing_many_fields_keeps_no_frame_or_body_in_memory(place: str) -> None:
    many = {f"{number:x}": "1" for number in range(MAX_UNKNOWN_FIELDS + 1)}
    with pytest.raises(ValidationError) as caught:
        FitIn.model_validate(many if place == "body" else {"tags": many})
    (found,) = caught.value.errors(include_input=False)
    assert found["msg"] == "must have at most 100 fields, got 101"
    assert not any(isinstance(one, Exception) for one in found["ctx"].values())
