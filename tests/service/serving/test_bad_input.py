"""Hostile and mistaken input at the three routes for arrays: what is refused, and the messages.

Every refusal is a problem with a stable code and a sentence, and reveals nothing internal.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from helpers import format_samples
from helpers.live_service import NPZ, Local, in_process, npz, sample
from helpers.workspace_contents import CLASSES, fitted_elsewhere

LIMIT = 1 << 20
JSON_LIMIT = 1 << 18
NPY_TYPE = "application/x-npy"
NPZ_TYPE = "application/x-npz"
SAFETENSORS = "application/x-safetensors"
JSON = "application/json"

DOORS = {
    "datasets": "/v1/datasets",
    "fits": "/v1/calibrators/made/fits?method=temperature",
    "predict": "/v1/calibrators/fashion@1/predict",
}
INSIDES = (
    "Traceback",
    "/work",
    "/tmp",  # noqa: S108 - looked for, not used
    "SELECT",
    "sqlite",
    "site-packages",
    ".py",
    "object at 0x",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with small limits and one calibrator of five classes."""
    limits = {
        "max_upload_bytes": LIMIT,
        "max_predict_bytes": LIMIT,
        "max_part_bytes": LIMIT,
        "max_json_bytes": JSON_LIMIT,
        "max_classes": 1000,
        "body_timeout": 1.0,
    }
    with in_process(tmp_path_factory.mktemp("bad"), **limits) as local:
        url = "/v1/calibrators/fashion/versions"
        assert local.post(url, json=fitted_elsewhere()).status_code == 201
        yield local


def problem(answer: httpx.Response) -> dict[str, object]:
    """Return the problem in a response; fail if it is anything else or reveals too much."""
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == answer.status_code
    assert told["type"] == f"urn:calibrd:problem:{told['code']}"
    assert " " in told["detail"]
    for inside in INSIDES:
        assert inside not in answer.text, answer.text
    return told


def values(array: np.ndarray) -> bytes:
    """Return an npz with these logits and matching labels, which every route accepts."""
    return npz(array, np.zeros(len(array), np.int64))


def npy_claiming(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    """Return an npy file whose header declares more data than there is."""
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(64)


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def claiming(shape: tuple[int, ...]) -> bytes:
    return zipped(logits=npy_claiming(shape), labels=npy_claiming((8,), "<i8"))


def safetensors_claiming(shape: list[int], end: int) -> bytes:
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}
    header = json.dumps({"logits": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(64)


GOOD = values(np.zeros((4, CLASSES)))
ROW = "[1, 2, 3, 4, 5]"


class Bad(NamedTuple):
    """A body that every route refuses in the same way."""

    media_type: str
    body: bytes
    status: int
    code: str


def bad_json(text: str, status: int = 400, code: str = "malformed_json") -> Bad:
    return Bad(JSON, text.encode(), status, code)


BAD = {
    "NaN in JSON": bad_json(f'{{"logits": [{ROW}, [1, 2, NaN, 4, 5]], "labels": [0, 1]}}'),
    "Infinity in JSON": bad_json(f'{{"logits": [{ROW}, [1, 2, -Infinity, 4, 5]], "labels": [0]}}'),
    "1e999 in JSON": bad_json(f'{{"logits": [{ROW}, [1, 2, 1e999, 4, 5]], "labels": [0, 1]}}'),
    "deep JSON": bad_json("[" * 100_000, 422, "too_deep"),
    "deep JSON that ends": bad_json("[" * 50_000 + "]" * 50_000, 422, "too_deep"),
    "deep JSON in a field": bad_json(
        '{"logits": ' + "[" * 2000 + "]" * 2000 + ', "labels": [0]}', 422, "too_deep"
    ),
    "half a surrogate pair": bad_json('{"logits": "\\ud800"}'),
    "not UTF-8": Bad(JSON, b'{"logits": "\xff"}', 400, "malformed_json"),
    "text for a number": bad_json('{"logits": [["1", "2"]], "labels": [0]}', 422, "not_a_number"),
    "ragged rows": bad_json('{"logits": [[1, 2], [1]], "labels": [0, 1]}', 422, "ragged"),
    "both kinds": bad_json(
        '{"logits": [[1, 2]], "probabilities": [[0.5, 0.5]], "labels": [0]}',
        422,
        "logits_or_probabilities",
    ),
    "NaN in npz": Bad(NPZ_TYPE, values(np.full((4, CLASSES), np.nan)), 422, "nan"),
    "complex": Bad(NPZ_TYPE, values(np.zeros((4, CLASSES), complex)), 422, "bad_type"),
    "text": Bad(NPZ_TYPE, values(np.full((4, CLASSES), "a")), 422, "bad_type"),
    "dates": Bad(NPZ_TYPE, values(np.zeros((4, CLASSES), "M8[s]")), 400, "bad_header"),
    "objects": Bad(NPZ_TYPE, values(np.full((4, CLASSES), None)), 422, "bad_type"),
    "structured": Bad(NPZ_TYPE, values(np.zeros((4, CLASSES), "f4,i4")), 422, "bad_type"),
    "three dimensions": Bad(NPZ_TYPE, values(np.zeros((4, CLASSES, 2))), 422, "bad_shape"),
    "37 GB claimed": Bad(NPZ_TYPE, claiming((1_000_000_000, CLASSES)), 400, "truncated_body"),
    "2^32 x 2^32 claimed": Bad(NPZ_TYPE, claiming((2**32, 2**32)), 400, "truncated_body"),
    "2^63 claimed": Bad(NPZ_TYPE, claiming((2**63, 2)), 400, "bad_header"),
    "npz bomb": Bad(NPZ_TYPE, zipped(logits=bytes(1 << 28)), 413, "body_too_large"),
    "npz cut in half": Bad(NPZ_TYPE, GOOD[: len(GOOD) // 2], 400, "bad_zip"),
    "npz that is none": Bad(NPZ_TYPE, b"PK\x03\x04 and so on", 400, "truncated_body"),
    "a path in an npz": Bad(
        NPZ_TYPE, zipped(**{"../../logits": npy_claiming((8,))}), 422, "unknown_array"
    ),
    "safetensors that claims more": Bad(
        SAFETENSORS, safetensors_claiming([2**32, 2**32], 2**66), 400, "truncated_body"
    ),
    "safetensors header longer than all": Bad(SAFETENSORS, b"\xff" * 64, 400, "bad_header"),
    "empty": Bad(NPZ_TYPE, b"", 400, "empty_body"),
    "unknown type": Bad("text/plain", b"1,2,3", 415, "unsupported_media_type"),
    "pickle": Bad("application/python-pickle", b"\x80\x04N.", 415, "unsupported_media_type"),
    "no type, no known bytes": Bad("", b"\x80\x04N.", 415, "unsupported_media_type"),
    "type that is a trick": Bad("a/b; x=" + "y" * 200, b"1", 415, "unsupported_media_type"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", BAD)
def test_bad_body(service: Local, door: str, name: str) -> None:
    bad = BAD[name]
    headers = {"Content-Type": bad.media_type} if bad.media_type else {}
    url = DOORS[door].partition("?")[0] if bad.media_type == JSON else DOORS[door]
    body = bad.body
    if door == "fits" and bad.media_type == JSON:  # the method is checked first there
        body = body.replace(b"{", b'{"method": "temperature", ', 1)
    told = problem(service.post(url, content=body, headers=headers))
    assert (told["status"], told["code"]) == (bad.status, bad.code), told


def test_bad_bodies_create_and_leave_nothing(service: Local) -> None:
    assert service.get("/v1/datasets").json()["items"] == []
    assert service.get("/v1/fits").json()["items"] == []
    assert service.get("/v1/calibrators/made").status_code == 404
    folder = service.app.state.parts.settings.data_dir / "uploads"
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("shape", "dtype", "code"),
    [
        ((1_000_000_000, CLASSES), "<f8", "truncated_body"),
        ((2**32, 2**32), "<f8", "truncated_body"),
        ((2**50, 2), "<f8", "bad_header"),
        ((8,), "|O", "bad_type"),
        ((8,), "<c16", "bad_type"),
    ],
)
def test_inconsistent_npy_headers_sent_to_predict(service: Local, shape, dtype, code) -> None:
    body = npy_claiming(shape, dtype)
    answer = service.post(DOORS["predict"], content=body, headers={"Content-Type": NPY_TYPE})
    assert problem(answer)["code"] == code


@pytest.mark.parametrize("door", ["datasets", "fits"])
@pytest.mark.parametrize(
    ("labels", "code"),
    [
        (np.array([0, 1, 2, CLASSES]), "label_out_of_range"),
        (np.array([0, 1, 2, -1]), "label_out_of_range"),
        (np.array([0, 1, 2, 2**63], np.uint64), "label_out_of_range"),
        (np.array([0.0, 1.0, 2.0, 3.0]), "labels_not_integers"),
        (np.array([0, 1, 2]), "length_mismatch"),
    ],
)
def test_bad_labels(service: Local, door: str, labels: np.ndarray, code: str) -> None:
    body = npz(np.zeros((4, CLASSES)), labels)
    told = problem(service.post(DOORS[door], content=body, headers=NPZ))
    assert (told["status"], told["code"]) == (422, code)


@pytest.mark.parametrize("width", [2, CLASSES - 1, CLASSES + 1])
def test_another_number_of_classes_is_refused_with_both_numbers(service: Local, width: int) -> None:
    told = problem(service.post(DOORS["predict"], json={"logits": [[0.5] * width]}))
    assert (told["status"], told["code"]) == (422, "wrong_classes")
    assert (told["expected"], told["got"]) == (CLASSES, width)
    assert f"{CLASSES} classes" in str(told["detail"])
    assert str(width) in str(told["detail"])


def test_fortran_order_is_accepted_and_means_the_same(service: Local) -> None:
    logits, labels = sample(40, CLASSES)
    other_way = np.asfortranarray(logits)
    assert service.post(DOORS["datasets"], content=npz(other_way, labels), headers=NPZ).is_success
    bodies = [format_samples.npz(logits=array) for array in (logits, other_way)]
    assert bodies[0] != bodies[1]
    answers = [service.post(DOORS["predict"], content=body, headers=NPZ) for body in bodies]
    assert answers[0].content == answers[1].content


NAMES = {
    "up": "..%2fx",
    "up twice": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "dots": "..",
    "slash": "a%2fb",
    "path": "a/b",
    "NUL": "a%00b",
    "only NUL": "%00",
    "newline": "a%0d%0aX-Bad:%201",
    "newline at the end": "fashion%0a",
    "long": "x" * 65,
    "very long": "x" * 5000,
    "accent": quote("é"),
    "digit of another script": quote("१"),
    "emoji": quote("💣"),
    "not UTF-8": "%ff%fe",
    "upper case": "Fashion",
    "dash first": "-rf",
    "space": "a%20b",
    "SQL": quote("x'; DROP TABLE keys; --"),
    "template": quote("{{7*7}}"),
    "percent": "%25",
}
PLACES = [
    ("GET", "/v1/calibrators/{}"),
    ("POST", "/v1/calibrators/{}/fits?method=temperature"),
    ("POST", "/v1/calibrators/{}/versions"),
    ("PUT", "/v1/calibrators/fashion/aliases/{}"),
    ("GET", "/v1/calibrators/{}/versions/1/report.svg"),
    ("POST", "/v1/calibrators/{}@1/predict"),
    ("POST", "/v1/calibrators/fashion@{}/predict"),
    ("GET", "/v1/datasets/{}"),
    ("PUT", "/v1/datasets/{}/parts/1"),
    ("DELETE", "/v1/fits/{}"),
    ("DELETE", "/v1/keys/{}"),
]


@pytest.mark.parametrize("name", NAMES)
def test_malicious_names_create_nothing(service: Local, name: str) -> None:
    bodies = {"/fits": (NPZ_TYPE, GOOD), "/versions": (JSON, json.dumps(fitted_elsewhere()))}
    for method, place in PLACES:
        ending = next((one for one in bodies if one in place and method == "POST"), None)
        media_type, body = bodies.get(ending, (JSON, '{"version": 1}'))
        told = problem(raw_call(service, method, place.format(NAMES[name]), body, media_type))
        assert told["status"] in (404, 405, 414, 422), (method, place, told)
    found = [one["name"] for one in service.get("/v1/calibrators").json()["items"]]
    assert set(found) <= {"fashion"}
    assert service.get("/v1/calibrators/fashion").json()["aliases"] == []


@pytest.mark.parametrize("name", NAMES)
def test_malicious_names_under_v2(service: Local, name: str) -> None:
    for path in ("/v2/models/{}", "/v2/models/{}/infer", "/v2/models/fashion/versions/{}/infer"):
        method = "POST" if path.endswith("infer") else "GET"
        answer = raw_call(service, method, path.format(NAMES[name]), "{}", JSON)
        assert answer.status_code in (404, 405, 414), answer.text
        assert list(answer.json()) == ["error"]
        assert not any(inside in answer.text for inside in INSIDES)


def raw_call(
    service: Local, method: str, target: str, body: bytes | str, media_type: str
) -> httpx.Response:
    """Send a request whose target is sent exactly as written."""
    connection = HTTPConnection(service.base_url.host, service.base_url.port, timeout=20)
    try:
        connection.request(method, target, body, {"Content-Type": media_type})
        answer = connection.getresponse()
        return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())
    finally:
        connection.close()
