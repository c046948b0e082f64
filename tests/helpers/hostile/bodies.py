"""Bodies whose form, not whose content, costs a service more than it should."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

JSON = "application/json"
MEGABYTE = 1 << 20


class Body(NamedTuple):
    """A body with its headers, and its name in messages."""

    name: str
    content: bytes
    content_type: str
    headers: dict[str, str] = {}  # noqa: RUF012


DEEP_TEXT = b"[" * 250 + '"\u4e00\u4e00"'.encode() + b"]" * 250


def filled(unit: bytes, size: int, begin: bytes = b"", end: bytes = b"") -> bytes:
    """Return as many copies of a unit as fit into ``size``, between a beginning and an end."""
    return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


def unique_keys(size: int, value: bytes = b"0") -> bytes:
    """Return a JSON object with very many keys."""
    pair = len(b'"00000000":,') + len(value)
    return b"{" + b",".join(b'"%08x":%b' % (i, value) for i in range(size // pair)) + b"}"


def json_values(size: int) -> dict[str, bytes]:
    """Return JSON texts of about ``size`` bytes that are costly in different ways."""
    return {
        "zeros": filled(b"0,", size, b"[", b"0]"),
        "floats": filled(b"0.1,", size, b"[", b"0]"),
        "long floats": filled(b"0.12345678901234567,", size, b"[", b"0]"),
        "long numbers": filled(b"9" * 300 + b",", size, b"[", b"0]"),
        "one number": filled(b"9", min(size, 1 << 20)),
        "rows": filled(b"[0],", size, b"[", b"[0]]"),
        "empty lists": filled(b"[],", size, b"[", b"[]]"),
        "empty objects": filled(b"{},", size, b"[", b"{}]"),
        "objects": filled(b'{"a":0},', size, b"[", b"{}]"),
        "keys": unique_keys(size),
        "one key again": filled(b'"a":0,', size, b"{", b'"a":0}'),
        "texts": filled(b'"ab",', size, b"[", b'""]'),
        "one text": filled(b"a", size, b'"', b'"'),
        "escapes": filled(rb"\u00e9", size, b'"', b'"'),
        "wide characters": filled("\N{GRINNING FACE}".encode(), size, b'"', b'"'),
        "nulls": filled(b"null,", size, b"[", b"null]"),
        "depth": b"[" * (size // 2) + b"]" * (size // 2),
        "closed depth": b"[" * 1000 + b"]" * 1000,
        "lists in lists": filled(b"[" * 30 + b"]" * 30 + b",", size, b"[", b"[]]"),
        # orjson cannot serialise this: it writes beyond its buffer
        "texts in lists in lists": filled(DEEP_TEXT + b",", min(size, 1 << 22), b"[", b"[]]"),
        "open objects": filled(b'{"a":', size),
        "blanks": filled(b" ", size, b"", b"1"),
        "not UTF-8": filled(b"\xff", size, b'"', b'"'),
        "cut": filled(b"[0,", size),
    }


def json_bodies(size: int, fields: list[str]) -> Iterator[Body]:
    """Yield each value as a whole body, and in turn inside the fields that a route accepts."""
    values = json_values(size)
    for name, value in values.items():
        yield Body(f"JSON {name}", value, JSON)
    for place, field in enumerate(fields):
        for name in _turn(sorted(values), place):
            text = json.dumps(field).encode()
            yield Body(f"JSON {field}: {name}", b"{" + text + b":" + values[name] + b"}", JSON)


def _turn(names: list[str], place: int, count: int = 6) -> list[str]:
    """Return some of the names, different ones for each place, so that a few places cover all."""
    return [names[(place * count + step) % len(names)] for step in range(count)]


def npy_header(text: str, version: int = 1) -> bytes:
    """Return an npy file that consists of a header."""
    width = 2 if version == 1 else 4
    encoded = text.encode("latin-1")
    head = b"\x93NUMPY" + bytes([version, 0]) + len(encoded).to_bytes(width, "little")
    return head + encoded


def npy_bodies() -> Iterator[Body]:
    """Yield npy files whose headers are costly to parse."""
    longest = 4000
    texts = {
        "pairs 25": "{" + "'a':[]," * 25 + "!",
        "pairs 60": "{" + "'a':[]," * 60 + "!",
        "pairs": ("{" + "'a':[]," * 1000)[:longest] + "!",
        "quotes": "{" + "'a':'b'," * 400 + "!",
        "brackets": "[" * longest,
        "parentheses": "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 3000,
        "minus": "-" * longest + "1",
        "tuple": "{'descr':'<f4','fortran_order':False,'shape':(" + "1," * 1900 + ")}",
        "digits": "{'descr':'<f4','fortran_order':False,'shape':(" + "9" * 3900 + ",)}",
        "huge": "{'descr':'<f4','fortran_order':False,'shape':(4294967296, 4294967296)}",
        "blanks": "{" + " " * longest,
        "sum": "1+" * 1900 + "1",
        "names": "{'descr':'<U100000000','fortran_order':False,'shape':(1,)}",
    }
    for name, text in texts.items():
        for version in (1, 2):
            content = npy_header(text, version)
            yield Body(f"npy {name} v{version}", content, "application/x-npy")


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """Return an npz file whose members are compressed as far as possible."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def fortran_dataset(rows: int = 100, classes: int = 100_000) -> bytes:
    """Return a small npz file with zeros of very many classes, in Fortran order."""
    values = np.zeros((rows, classes), np.float32, order="F")
    return packed({"logits": values, "labels": np.zeros(rows, np.int64)})


def npz_bodies(unpacked: int) -> Iterator[Body]:
    """Yield npz files that unpack to about ``unpacked`` bytes, or are not zip files."""
    wide = max(1, unpacked // 400_000)
    tall = unpacked // 8
    labels = np.zeros(wide, np.int64)
    shapes: dict[str, Callable[[], bytes]] = {
        "Fortran order": lambda: fortran_dataset(wide),
        "C order": lambda: packed({"logits": np.zeros((wide, 100_000), "f4"), "labels": labels}),
        "two classes": lambda: packed(
            {"logits": np.zeros((tall, 2), "f4"), "labels": np.zeros(tall, "i1")}
        ),
        "probabilities": lambda: packed(
            {
                "probabilities": np.full((tall // 4, 2), 0.5, "f8"),
                "labels": np.zeros(tall // 4, "i1"),
            }
        ),
        "names": lambda: packed(
            {
                "logits": np.zeros((tall // 100, 2), "f4"),
                "labels": np.zeros(tall // 100, "i1"),
                "segments": np.full(tall // 100, "a" * 100),
            }
        ),
        "many members": _many_members,
        "no zip": lambda: b"PK\x03\x04" + b"\0" * 1000,
    }
    for name, make in shapes.items():
        yield Body(f"npz {name}", make(), "application/x-npz")


def _many_members() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(5000):
            archive.writestr(f"{number}.npy", b"")
    return file.getvalue()


def safetensors_bodies() -> Iterator[Body]:
    """Yield safetensors files with costly headers."""
    one = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
    texts = {
        "tensors": b"{" + b"".join(one % i for i in range(1000)) + b'"x":0}',
        "depth": b'{"a":' + b"[" * 60_000,
        "zeros": b'{"a":[' + b"0," * 30_000 + b"0]}",
        "long": b"{" + b" " * (1 << 22) + b"}",
    }
    for name, text in texts.items():
        content = len(text).to_bytes(8, "little") + text
        yield Body(f"safetensors {name}", content, "application/x-safetensors")


def csv_bodies(size: int) -> Iterator[Body]:
    """Yield CSV files with costly lines."""
    head = b"logit_0,logit_1,label\n"
    texts = {
        "one line": filled(b"1,", size),
        "header": b",".join(b"logit_%d" % i for i in range(size // 14)) + b",label\n",
        "empty lines": filled(b"\n", size, head),
        "short lines": filled(b"1,2,0\n", size, head),
        "open quote": filled(b"a,", size, head + b'"'),
        "quoted lines": filled(b'"\n",', size, head),
        "one cell": filled(b"1", size, head),
        "carriage returns": filled(b"\r", size, head),
    }
    for name, text in texts.items():
        yield Body(f"CSV {name}", text, "text/csv")


def infer_bodies(size: int) -> Iterator[Body]:
    """Yield bodies of the Open Inference Protocol: compressed ones, and tensors of odd sizes."""
    zeros = gzip.compress(b"\0" * size)
    spaces = gzip.compress(b" " * size)
    yield Body("gzip zeros", zeros, JSON, {"Content-Encoding": "gzip"})
    yield Body("gzip blanks", spaces, JSON, {"Content-Encoding": "gzip"})
    tensor: dict[str, Any] = {"name": "logits", "datatype": "FP32", "shape": [1, 5]}
    for name, changed in {
        "shape": {"shape": [2**40, 5]},
        "dimensions": {"shape": [1] * 100_000},
        "parameters": {"parameters": {str(i): i for i in range(100_000)}},
        "data": {"data": {str(i): i for i in range(100_000)}},
        "many": {"data": [0.0] * 500_000, "shape": [100_000, 5]},
    }.items():
        content = json.dumps({"inputs": [tensor | changed]}).encode()
        yield Body(f"infer {name}", content, JSON)
    many = json.dumps({"inputs": [tensor] * 20_000}).encode()
    yield Body("infer inputs", many, JSON)


def form_bodies(size: int) -> Iterator[Body]:
    """Yield forms with very many or very long fields."""
    kind = "application/x-www-form-urlencoded"
    yield Body("form fields", filled(b"a=1&", size), kind)
    yield Body("form escapes", filled(b"%E2%82%AC", size, b"rows="), kind)
    yield Body("form commas", filled(b"%2C+", size, b"rows=1"), kind)
    yield Body("form numbers", filled(b"1+", size, b"rows="), kind)
    yield Body("form text", filled(b"a", size, b"key="), kind)


def text_bodies(size: int) -> Iterator[Body]:
    """Yield bodies of types that no route accepts."""
    yield Body("octets", b"\0" * size, "application/octet-stream")
    yield Body("multipart", filled(b"--a\r\n\r\n", size), "multipart/form-data; boundary=a")
    yield Body("XML", filled(b"<a>", size), "application/xml")
