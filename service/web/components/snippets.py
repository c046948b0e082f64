"""Code snippets that call a calibrator with curl, Python, or the API of KServe and Triton."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, NamedTuple

from fastapi import Request

from calibrators.features import MAX_FEATURES
from calibrators.registry import all_maps
from service.storage.records import PRODUCTION, Version

LONGEST_BODY = 1000
NAMED = {
    "segments": "the segment of each row",
    "features": "the input to the model's last layer, for each row",
}
KEY = '-H "Authorization: Bearer $CALIBRD_API_KEY"'


class Snippet(NamedTuple):
    """A label and the code."""

    label: str
    text: str


def snippets(
    request: Request, name: str, ref: str, version: Version, *, needs_key: bool
) -> tuple[Snippet, ...]:
    """Return snippets that call a calibrator by an alias or a version number."""
    url = address(request)
    reference = f"{name}@{ref}"
    predict = f"{url}/v1/calibrators/{reference}/predict"
    model = f"{url}/v2/models/{name}" + ("" if ref == PRODUCTION else f"/versions/{ref}")
    segments = _segments(version)
    features = _features(version)
    named: dict[str, Any] = {"segments": segments} if segments else {}
    if features:
        named["features"] = features
    found = (
        Snippet("curl", _curl(predict, {version.kind: _row(version), **named}, needs_key)),
        Snippet("Python", _python(url, reference, version, named)),
    )
    if features:  # the protocol has no input for them
        return found
    inference = _curl(f"{model}/infer", _inference(version, segments), needs_key)
    return (*found, Snippet("KServe, Triton", inference))


def address(request: Request) -> str:
    """Return the URL of the service as the browser sees it."""
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme).partition(",")[0].strip()
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    is_path = re.fullmatch(r"(/[\w.~-]+)*", prefix)
    place = f"{request.url.netloc}{prefix if is_path else ''}"
    return f"{'https' if scheme == 'https' else 'http'}://{place}"


def _row(version: Version) -> list[list[float]]:
    """Return an example row with as many numbers as the version takes."""
    others = version.classes - 1
    if version.kind == "logits":
        return [[3.0, 1.0, *[0.0] * (others - 1)]]
    rest = round(0.4 / others, 6)
    return [[round(1 - rest * others, 6), *[rest] * others]]


def _segments(version: Version) -> list[str]:
    """Return a segment for the example row, if the map has segments."""
    found = version.fit_info.get("segments")
    if version.method != "segmented" or not isinstance(found, list):
        return []
    return [str(one["name"]) for one in found[:1] if isinstance(one, dict) and "name" in one]


def _features(version: Version) -> list[list[float]]:
    """Return features for the example row, if the map needs them."""
    map_type, found = all_maps().get(version.method), version.fit_info.get("features")
    if map_type is None or not map_type.has_features or not isinstance(found, int):
        return []
    return [[0.0] * found] if 1 <= found <= MAX_FEATURES else []


def _curl(url: str, body: dict[str, Any], needs_key: bool) -> str:
    content = shlex.quote(json.dumps(body))
    if len(content) > LONGEST_BODY:  # let Python generate it in the shell
        made = f"import json; print(json.dumps({_short(body)}))"
        content = f'"$(python3 -c {shlex.quote(made)})"'
    pieces = [f"curl -s {url}", KEY, "-H 'Content-Type: application/json'", f"-d {content}"]
    return " \\\n  ".join(one for one in pieces if needs_key or one != KEY)


def _short(value: Any) -> str:
    """Return a value as Python code, with repeated numbers abbreviated."""
    match value:
        case dict():
            return "{" + ", ".join(f'"{key}": {_short(one)}' for key, one in value.items()) + "}"
        case [float(), *_] if len(value) > 2:
            head, rest = value[:2], value[2:]
            return f"{head} + [{rest[0]}] * {len(rest)}"
        case list():
            return f"[{', '.join(map(_short, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _python(url: str, reference: str, version: Version, named: dict[str, Any]) -> str:
    kind, follows = (
        version.kind,
        "" if reference.rpartition("@")[2].isdigit() else "follows the alias, ",
    )
    argument = "".join(f", {name}={name}" for name in named)
    given = "".join(f"{name} = {_short(one)}  # {NAMED[name]}\n" for name, one in named.items())
    return (
        "import calibrd\n\n"
        f"{kind} = {_short(_row(version))}\n" + given + "# the key is read from CALIBRD_API_KEY\n"
        f'client = calibrd.Client("{url}")\n'
        f'p = client.predict("{reference}", {kind}{argument})\n\n'
        f"# or apply the map in this process: {follows}works while the service is down\n"
        f'calibrator = client.load("{reference}")\n'
        f"p = calibrator.apply({kind}{argument})"
    )


def _inference(version: Version, segments: list[str]) -> dict[str, Any]:
    shape = [1, version.classes]
    values = {"name": version.kind, "shape": shape, "datatype": "FP64", "data": _row(version)}
    named = {"name": "segments", "shape": [1], "datatype": "BYTES", "data": segments}
    return {"inputs": [values, named] if segments else [values]}
