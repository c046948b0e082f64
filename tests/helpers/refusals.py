"""Expect a refusal with a given code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from calibrators.error_codes import ERROR_CODES
from calibrd.errors import Refused, kind_of


@contextmanager
def refused(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Refused]]:
    """Fail unless the block raises this code, as the error class of its status."""
    status = ERROR_CODES[code].status
    assert status is not None
    with pytest.raises(kind_of(status), match=match) as caught:
        yield caught
    assert (caught.value.code, caught.value.status) == (code, status)
