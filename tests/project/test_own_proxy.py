"""The nginx settings of docs/how-to/deploy.md, in front of the real service."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.commands import here
from helpers.documents import blocks_of
from helpers.live_service import running
from helpers.nginx import free_port, needs_nginx, nginx

import calibrd
from calibrators.methods.identity import IdentityMap

pytestmark = [needs_nginx, pytest.mark.service]

AROUND = """\
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.errors;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, str]]:
    """Run the service behind nginx with TLS; yield its address, its certificate and a key."""
    folder = tmp_path_factory.mktemp("proxy")
    certificate, secret = folder / "calibrd.pem", folder / "calibrd.key"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    written = ["-addext", "subjectAltName=DNS:localhost", "-keyout", secret, "-out", certificate]
    subprocess.run([*command.split(), *map(str, written)], check=True, capture_output=True)
    data_dir, port = folder / "data", free_port()
    assert here("migrate", "--data-dir", data_dir).returncode == 0
    created = here("keys", "create", "--name", "a", "--scopes", "admin", "--data-dir", data_dir)
    assert created.returncode == 0, created.stderr
    with running(data_dir, "--workers", "0", "--max-connections-per-address", "32768") as service:
        (block,) = [one for one in blocks_of("docs/how-to/deploy.md") if one.language == "nginx"]
        server = block.code
        for old, new in (
            ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
            ("server_name calibrd.example.com;", "server_name localhost;"),
            ("/etc/ssl/calibrd.pem", str(certificate)),
            ("/etc/ssl/calibrd.key", str(secret)),
            ("http://127.0.0.1:8000", service.url),
        ):
            assert server.count(old) == 1
            server = server.replace(old, new)
        with nginx(AROUND.format(folder=folder, server=server), folder, port):
            yield f"https://localhost:{port}", certificate, created.stdout.strip()


def test_the_sdk_works_through_the_proxy(
    site: tuple[str, Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certificate, key = site
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with httpx.Client(verify=_trust(certificate), base_url=url) as http:
        assert http.get("/v1/calibrators").status_code == 401  # the key is needed behind a proxy
    with calibrd.Client(url, api_key=key) as client:
        version = client.register("m", IdentityMap(k=4, kind="logits"))
        assert (version.calibrator, version.number) == ("m", 1)
        logits = np.random.default_rng(0).normal(size=(300_000, 4)).astype(np.float32)
        assert client.upload(logits, np.arange(300_000) % 4).rows == 300_000


def test_a_session_through_the_proxy_is_secure_and_may_write(site: tuple[str, Path, str]) -> None:
    url, certificate, key = site
    origin = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(verify=_trust(certificate), base_url=url, headers=origin) as http:
        answer = http.post("/sign-in", data={"key": key})
        assert answer.status_code == 303, answer.text
        cookie = answer.headers["set-cookie"]
        assert "Secure" in cookie
        assert "HttpOnly" in cookie
        assert http.get("/jobs").status_code == 200
        foreign = {"Origin": "https://elsewhere.example"}
        assert http.get("/v1/calibrators", headers=foreign).status_code == 403


def test_events_arrive_at_once(site: tuple[str, Path, str]) -> None:
    """Read the first event of a fit that stays queued, as there is no worker."""
    url, certificate, key = site
    order = {"method": "temperature", "logits": [[1.0, 0.0], [0.0, 1.0]], "labels": [0, 1]}
    head = {"Authorization": f"Bearer {key}"}
    with httpx.Client(verify=_trust(certificate), base_url=url, headers=head) as http:
        fit = http.post("/v1/calibrators/m/fits", json=order)
        assert fit.status_code == 202, fit.text
        path = f"/v1/fits/{fit.json()['id']}/events"
        with http.stream("GET", path, timeout=10) as answer:
            assert answer.status_code == 200
            assert "queued" in next(answer.iter_text())


def _trust(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))
