"""The curl line of an operation, to be pasted into a shell that has ``$API`` and ``$AUTH``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any
from urllib.parse import quote as percent_encoded

BREAK = " \\\n  "
FLAGS = {"head": "-I ", "get": "", "post": "-X POST "}


def curl_line(
    method: str,
    path: str,
    values: Iterable[tuple[str, str, Any]],
    *,
    body: tuple[str, Any] | None = None,
    answer: str = "",
    needs_key: bool = True,
) -> str:
    """A command from (place, name, value) of parameters, a body and the answer's media type.

    The body is (media type, example); bytes, whose example is None, are read from a file.
    """
    by_place: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}}
    for place, name, value in values:
        by_place.setdefault(place, {})[name] = value
    flags = FLAGS.get(method, f"-X {method.upper()} ")
    if method == "post" and body is not None:
        flags = ""  # curl posts what it has a body of
    if answer == "text/event-stream":
        flags = f"-N {flags}"
    pieces = [f'curl -s {flags}"$API{_target(path, by_place)}"']
    if needs_key:
        pieces.append('-H "$AUTH"')
    pieces += [f"-H {quote(f'{name}: {_text(one)}')}" for name, one in by_place["header"].items()]
    if body is not None:
        pieces += _body(*body)
    if answer.startswith("image/") or answer == "application/octet-stream":
        pieces.append(f"-o {quote(path.rpartition('/')[2])}")
    return BREAK.join(pieces) if len(" ".join(pieces)) > 88 else " ".join(pieces)


def _target(path: str, by_place: Mapping[str, Mapping[str, Any]]) -> str:
    """Percent-encoded, so that nothing in it means anything to a shell within double quotes."""
    parts = re.split(r"\{([^{}]+)\}", path)
    for place, part in enumerate(parts):
        is_name = place % 2 == 1
        text = _text(by_place["path"].get(part, part)) if is_name else part
        parts[place] = percent_encoded(text, safe="@:," if is_name else "/@:,")
    query = "&".join(
        f"{percent_encoded(name, safe='')}={percent_encoded(_text(value), safe='@:,/')}"
        for name, value in by_place["query"].items()
    )
    return "".join(parts) + (f"?{query}" if query else "")


def _body(media_type: str, example: Any) -> list[str]:
    header = f"-H {quote(f'Content-Type: {media_type}')}"
    if example is not None:
        return [header, f"-d {quote(json.dumps(example, ensure_ascii=False))}"]
    kind = re.sub(r"\W", "", media_type.rpartition("/")[2].removeprefix("x-"))
    return [header, f"--data-binary @file.{'bin' if kind == 'octetstream' else kind}"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
