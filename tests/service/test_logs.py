"""Logs have a single format and contain neither secrets nor data."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import structlog

from service import logs

KEY = "cal_ab12_s3cr3ts3cr3ts3cr3t"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    names = ["", "uvicorn", "uvicorn.error", "uvicorn.access", "alembic", "sqlalchemy"]
    loggers = [logging.getLogger(name) for name in [*names, "httpx"]]
    before = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    shown = warnings.showwarning
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    warnings.showwarning = shown
    for each, handlers, level, propagate in before:
        each.handlers[:], each.propagate = handlers, propagate
        each.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_events_of_the_standard_library_have_fields_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info", "json")
    fields = {"from": None, "to": "0018", "data": [1], "key": KEY}
    logging.getLogger("service.storage.upgrade").info("database_migrated", extra=fields)
    (line,) = lines(capsys)
    assert (line["event"], line["from"], line["to"]) == ("database_migrated", None, "0018")
    assert "data" not in line
    assert "s3cr3t" not in line["key"]


def test_both_kinds_of_logs_have_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    structlog.get_logger("calibrd.access").info("request", status=200)
    for name in ("uvicorn.error", "alembic.runtime", "anything"):
        logging.getLogger(name).warning("from %s", name)

    found = lines(capsys)
    assert [line["event"] for line in found] == [
        "request",
        "from uvicorn.error",
        "from alembic.runtime",
        "from anything",
    ]
    assert all({"timestamp", "level", "logger"} <= set(line) for line in found)


def test_levels_and_what_is_never_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    structlog.get_logger().debug("too little")
    logging.getLogger("sqlalchemy.engine").info("SELECT 1")
    logging.getLogger("uvicorn.access").info("GET /?logits=1")
    assert lines(capsys) == []

    logs.configure("debug", "json")
    structlog.get_logger().debug("now")
    assert [line["event"] for line in lines(capsys)] == ["now"]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"key {KEY} is gone", "s3cr3t"),
        (f"Authorization: Bearer {KEY}", "s3cr3t"),
        ("authorization: bearer abc.def", "abc.def"),
        ("Authorization: Basic dXNlcjpwdw==", "dXNlcjpwdw"),
        ("headers [(b'authorization', b'Basic dXNlcjpwdw==')]", "dXNlcjpwdw"),
        ("postgresql://me:p@ss:w0rd@db:5432/x", "w0rd"),
        ("redis://:p4ss@cache", "p4ss"),
        ("connect(password='pa55', host='db')", "pa55"),
        ('{"client_secret": "pa55"}', "pa55"),
        ("AWS_SECRET_ACCESS_KEY=pa55", "pa55"),
    ],
)
def test_secrets_in_messages_and_tracebacks(
    text: str, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("info", "json")
    logging.getLogger("alembic").error("because %s", text)
    structlog.get_logger().info("said", note={"inner": [text]})
    try:
        raise RuntimeError(text)
    except RuntimeError:
        structlog.get_logger().exception("failed")
        logging.getLogger("uvicorn.error").exception("failed")

    found = lines(capsys)
    assert len(found) == 4
    assert all(logs.REDACTED in json.dumps(line) for line in found)
    assert not [line for line in found if secret in json.dumps(line)]
    assert ["RuntimeError" in line.get("exception", "") for line in found] == [
        False,
        False,
        True,
        True,
    ]


def test_fields_with_secret_names(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    structlog.get_logger().info("x", headers={"Authorization": "b", "Password": 1}, key_id="ab12")

    line = lines(capsys)[0]
    assert line["headers"] == {"Authorization": logs.REDACTED, "Password": logs.REDACTED}
    assert line["key_id"] == "ab12"


def test_plain_words_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    said = "dataset calibration_set of 5 rows at http://127.0.0.1:8000/v1 took 3 s"
    assert logs.redact(said) == said


def test_data_is_logged_as_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    structlog.get_logger().info(
        "x",
        body=b"12345",
        logits=np.zeros((3, 4)),
        rows=list(range(1000)),
        few=[1, 2],
        nested={"deep": {"body": b"1"}},
        loss=float("nan"),
        text="y" * 100_000,
    )

    line = lines(capsys)[0]
    assert line["body"] == "<5 bytes>"
    assert line["logits"] == "<array of shape (3, 4)>"
    assert line["rows"] == "<1000 items>"
    assert line["few"] == [1, 2]
    assert line["nested"] == {"deep": {"body": "<1 bytes>"}}
    assert line["loss"] == "nan"
    assert len(line["text"]) < 10_000


def test_the_console_shows_control_characters_instead_of_obeying_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info", "console")
    structlog.get_logger().info(
        "a\nb", path="/\x1b[2J\r\u202ex", note=["\x1b[2J"], name="Grüße 日本"
    )
    logging.getLogger("anything").warning("from %s", "\x1b]0;title\x07")
    try:
        raise RuntimeError("\x1b[2J")
    except RuntimeError:
        structlog.get_logger().exception("failed")

    written = capsys.readouterr().err
    assert [one for one in written if not one.isprintable() and one != "\n"] == []
    assert r"path=/\x1b[2J\r\u202ex" in written
    assert "name='Grüße 日本'" in written
    assert r"a\nb" in written
    first, *_, last = written[written.index("Traceback") :].splitlines()
    assert (first, last) == ("Traceback (most recent call last):", r"RuntimeError: \x1b[2J")


def test_the_console_form_redacts_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "console")
    try:
        raise RuntimeError(KEY)
    except RuntimeError:
        structlog.get_logger().exception("failed", note=KEY)

    written = capsys.readouterr().err
    assert "failed" in written
    assert "RuntimeError" in written
    assert "s3cr3t" not in written
