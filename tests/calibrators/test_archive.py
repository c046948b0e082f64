"""Archives: reading returns exactly what was written, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.samples import draw
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import ArchiveError, archive
from calibrators.methods.identity import IdentityMap
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureMap

TEMPERATURE = TemperatureMap(k=3, temperature=1.2345678901234567, fit_info={"rows": 7})
BYTES = archive.dump(TEMPERATURE)
SMART = archive.dump(Smart(steps=5).fit(draw(200, 4)))


def forged(data: bytes = BYTES, **changes: Any) -> bytes:
    """Return an archive with another header and the matching hash."""
    length = struct.unpack_from("<I", data, 40)[0]
    header = {**json.loads(data[44 : 44 + length]), **changes}
    text = json.dumps(header).encode()
    body = struct.pack("<I", len(text)) + text + data[44 + length :]
    return data[:8] + hashlib.sha256(body).digest() + body


def parameters(**changes: Any) -> bytes:
    return forged(parameters={**archive.describe(BYTES)["parameters"], **changes})


def test_header_describes_the_map() -> None:
    header = archive.describe(BYTES)
    assert header["format"] == 1
    assert header["method"] == "temperature"
    assert header["parameters"]["k"] == 3
    assert header["parameters"]["temperature"] == TEMPERATURE.temperature
    assert header["parameters"]["fit_info"] == {"rows": 7}
    assert header["sha256"] == hashlib.sha256(BYTES[40:]).hexdigest()
    assert {"python", "numpy", "calibrd", "torch"} <= set(header["libraries"])


def test_numbers_come_back_to_the_bit() -> None:
    assert archive.load(BYTES).temperature == TEMPERATURE.temperature  # type: ignore[attr-defined]
    smart = archive.load(SMART)
    assert archive.dump(smart) == SMART
    with pytest.raises(ValueError, match="read-only"):
        smart.w1[0, 0] = 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "not_an_archive"),
        (b"PK\x03\x04 a zip file, perhaps, of some length or other", "not_an_archive"),
        (BYTES[:30], "not_an_archive"),
        (BYTES[:7] + b"\x02" + BYTES[8:], "unknown_format"),
        (BYTES + b"\0", "trailing_bytes"),
        (BYTES + BYTES, "trailing_bytes"),
        (BYTES[:-1], "wrong_hash"),
        (BYTES[:60] + b"!" + BYTES[61:], "wrong_hash"),
        (BYTES[:20] + b"!" + BYTES[21:], "wrong_hash"),
        (forged(method="telepathy"), "unknown_method"),
        (forged(method=["temperature"]), "wrong_length"),
        (forged(arrays={"a": {"dtype": "<f8", "shape": [2]}}), "wrong_length"),
        (forged(arrays={"a": {"dtype": "|O", "shape": [0]}}), "wrong_length"),
        (forged(arrays={"a": {"dtype": "<f8", "shape": [-1]}}), "wrong_length"),
        (forged(arrays={"a": {"dtype": "<f8", "shape": [2**62, 2**62]}}), "wrong_length"),
        (forged(arrays={"a": {"dtype": "<f8", "shape": [0, 10**30]}}), "wrong_length"),
        (forged(arrays={"a": {"dtype": "<f8", "shape": [1] * 70}}), "wrong_length"),
        (forged(arrays=None), "wrong_length"),
        (forged(parameters={}), "wrong_fields"),
        (parameters(extra=1), "wrong_fields"),
        (parameters(temperature="1.5"), "wrong_fields"),
        (parameters(temperature=-1.5), "wrong_fields"),
        (parameters(temperature=float("inf")), "wrong_fields"),
        (parameters(temperature=10**400), "wrong_fields"),
        (parameters(temperature=5e-324), "wrong_fields"),
        (parameters(k=1), "wrong_fields"),
        (parameters(k=10**30), "wrong_fields"),
        (parameters(kind="guesses"), "wrong_fields"),
        (parameters(fit_info=[]), "wrong_fields"),
    ],
)
def test_anything_else_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(ArchiveError) as caught:
        archive.load(data)
    assert caught.value.code == code


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(SMART) - 1))
    change = data.draw(st.integers(1, 255))
    broken = bytearray(SMART)
    broken[place] ^= change
    with pytest.raises(ArchiveError):
        archive.load(bytes(broken))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ArchiveError):
        archive.load(data)


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    header = archive.describe(SMART)
    arrays = {**header["arrays"], "w1": {"dtype": "<f8", "shape": [16, 1]}}
    with pytest.raises(ArchiveError, match="have inconsistent shapes"):
        archive.load(forged(SMART, arrays=arrays))
    parameters = {**header["parameters"], "indicator": "all_logits"}
    with pytest.raises(ArchiveError, match="have inconsistent shapes"):
        archive.load(forged(SMART, parameters=parameters))


def test_arrays_must_be_finite() -> None:
    fitted = archive.load(SMART)
    broken = replace(fitted, b1=np.full(16, np.nan))  # type: ignore[call-arg]
    with pytest.raises(ArchiveError, match="NaN or infinite"):
        archive.load(archive.dump(broken))


def test_a_map_needs_two_classes() -> None:
    with pytest.raises(ValueError, match="at least 2 classes"):
        IdentityMap(k=1)
