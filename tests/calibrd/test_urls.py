"""URLs, prefixes and keys of the service, and servers that are something else."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from helpers.faulty_http_proxy import FaultyLine, Say, faulty_line
from helpers.live_service import Running, sample

import calibrd
from calibrd import errors
from calibrd.transport.connection import DEFAULT_URL

PAGE = Say(200, {"content-type": "text/html"}, b"<!doctype html><title>A shop</title>")


@pytest.mark.parametrize("more", ["/", "//", " ", "/\n"])
def test_slashes_and_blanks_around_a_url_do_no_harm(service: Running, more: str) -> None:
    with calibrd.Client(f"{more.strip('/')}{service.url}{more}") as client:
        assert client.url == service.url
        assert client.methods()


def test_a_service_behind_a_prefix(line: FaultyLine) -> None:
    line.prefix = "/models/calibrd"
    with calibrd.Client(f"{line.url}/models/calibrd/", part_bytes=2048) as client:
        made = client.upload(*sample(seed=2102), progress=False)
        assert client.get_dataset(f"sha256:{made.sha256}") == made
        assert client.ready().database == "ok"
    assert {one.path.partition("/calibrd/")[0] for one in line.asked} == {"/models"}


def test_a_redirect_is_not_followed(line: FaultyLine, service: Running) -> None:
    with faulty_line(service.url) as behind:
        line.before = lambda asked: Say(307, {"location": behind.url})
        with (
            calibrd.Client(line.url) as client,
            pytest.raises(errors.NotCalibrd, match=behind.url),
        ):
            client.methods()
        assert not behind.asked  # a redirect could lead the key anywhere


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (PAGE, "A shop"),
        (Say(404, {}, PAGE.content), "not a calibrd service: it responded with status 404"),
        (Say(200, {}, b'{"hello": "world"}'), "JSON, but not"),
        (Say(200, {}, b"[1, 2]"), "JSON, but not"),
        (Say(301, {"location": "https://other.example/v1"}), "redirects to https://other.example"),
        (Say(200, {"content-encoding": "gzip"}, b"not gzip"), "cannot be decompressed"),
    ],
    ids=str,
)
def test_another_server(line: FaultyLine, said: Say, words: str) -> None:
    line.before = lambda asked: said
    with calibrd.Client(line.url, retry_seconds=5) as client:
        for ask in (
            client.methods,
            client.datasets,
            client.ready,
            lambda: client.predict("a@1", [[1.0, 2.0]]),
            lambda: client.evaluate("a@1", [[1.0, 2.0]], [1]),
        ):
            line.asked.clear()
            with pytest.raises(errors.NotCalibrd):
                ask()
            assert len(line.asked) == 1
        with pytest.raises(errors.NotCalibrd, match=words):
            client.get_fit("fit_1")


def test_a_server_without_tls_is_not_retried(service: Running) -> None:
    secure = service.url.replace("http://", "https://")
    with (
        calibrd.Client(secure, retry_seconds=60) as client,
        pytest.raises(errors.NotCalibrd, match="SSL"),
    ):
        client.methods()


def test_the_environment_is_used_unless_something_is_given(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALIBRD_URL", service.url)
    with calibrd.Client() as client:
        assert client.url == service.url
    with calibrd.Client("https://calibrd.example/base/") as client:
        assert client.url == "https://calibrd.example/base"
    for empty in ("", "  "):
        monkeypatch.setenv("CALIBRD_URL", empty)
        with calibrd.Client(empty) as client:
            assert client.url == DEFAULT_URL


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "ftp://127.0.0.1",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://a b",
        "http://me:secret@host",
        "http://host?x=1",
        "http://host/#x",
    ],
)
def test_invalid_service_urls(url: str) -> None:
    with pytest.raises(ValueError, match="url must "):
        calibrd.Client(url)


@pytest.mark.parametrize("key", ["cal_a b", "cal_ä", "cal_a\x00b", "cal_a\nb", "cal_“x”"])
def test_an_invalid_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match="api_key must be") as raised:
        calibrd.Client(api_key=key)
    assert key not in str(raised.value)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"retry_seconds": -1}, {"part_bytes": 1}])
def test_invalid_limits(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        calibrd.Client(**options)


def test_names_cannot_change_the_path(line: FaultyLine) -> None:
    with calibrd.Client(line.url) as client:
        for name in ("../keys", "a/../../keys", "a?b", "a#b", "ä", "a%2Fb", "", ".", ".."):
            with pytest.raises((errors.Refused, ValueError)):
                client.get_calibrator(name)
            with pytest.raises((errors.Refused, ValueError)):
                client.get_dataset(name)
    for one in line.asked:
        assert urlsplit(one.path).path.startswith(("/v1/calibrators/", "/v1/datasets/"))
