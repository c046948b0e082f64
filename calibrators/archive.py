"""Binary archives of maps, with a format version and a verified hash, and without pickle.

    8 bytes   b"calibrd" and the format version
    32 bytes  sha256 of everything after it
    4 bytes   length of the header, little-endian
    header    JSON: method, k, kind, parameters, fit_info, library versions, arrays by name
    arrays    little-endian, C order, concatenated in the order of their names

A nested map (the field ``base``) is stored as the parameter ``base``, with a method and parameters
of its own; its arrays are named ``base.array``. Maps are nested at most one level deep.

The same map and library versions yield the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import struct
from dataclasses import fields
from importlib import metadata
from typing import Any, get_origin

import numpy as np
from numpy.typing import NDArray

from calibrators.base import CalibrationMap
from calibrators.errors import ArchiveError, CalibrationError
from calibrators.fitting.parameters import broken_rule, field_hints
from calibrators.registry import all_maps
from calibrators.rounding import Zeros

MAGIC = b"calibrd"
FORMAT = 1
PREFIX = struct.Struct("<8s32sI")
MAX_NAMED = 5
DTYPES = ("<f8", "<f4", "<i8")


def dump(fitted: CalibrationMap) -> bytes:
    """Serialise a map to archive bytes.

    >>> from calibrators.methods.temperature import TemperatureMap
    >>> load(dump(TemperatureMap(k=3, temperature=1.5))).temperature
    1.5
    """
    parameters, arrays = _split(fitted)
    packed = {
        name: np.ascontiguousarray(one, one.dtype.newbyteorder("<"))
        for name, one in sorted(arrays.items())
    }
    header = {
        "method": fitted.method,
        "parameters": parameters,
        "arrays": {n: {"dtype": a.dtype.str, "shape": list(a.shape)} for n, a in packed.items()},
        "libraries": _libraries(),
    }
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    body = struct.pack("<I", len(text)) + text + b"".join(a.tobytes() for a in packed.values())
    return MAGIC + bytes([FORMAT]) + hashlib.sha256(body).digest() + body


def load(data: bytes) -> CalibrationMap:
    """Return the map stored in an archive; raise ArchiveError if the archive is invalid."""
    header, payload = _open(bytes(data))
    arrays = _arrays(header["arrays"], payload)
    return _build(header["method"], header["parameters"], arrays)


def describe(data: bytes) -> dict[str, Any]:
    """Return the header of an intact archive: method, parameters, arrays, libraries, sha256."""
    header, _ = _open(data)
    return {**header, "format": FORMAT, "sha256": data[8:40].hex()}


def header_text(data: bytes) -> bytes:
    """Return the raw bytes of the header, or what is left of it in a truncated archive."""
    if len(data) < PREFIX.size:
        return b""
    length = PREFIX.unpack_from(data)[2]
    return data[PREFIX.size : PREFIX.size + length]


def _split(fitted: CalibrationMap) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the parameters and arrays of a map, including those of a nested map."""
    parameters: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for field in fields(fitted):
        value = getattr(fitted, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        elif isinstance(value, CalibrationMap):
            inner, inside = _split(value)
            parameters[field.name] = {"method": value.method, "parameters": inner}
            arrays |= {f"{field.name}.{name}": array for name, array in inside.items()}
        else:
            parameters[field.name] = value
    return parameters, arrays


def _build(
    method: str,
    parameters: dict[str, Any],
    arrays: dict[str, NDArray[Any]],
    *,
    is_inside: bool = False,
) -> CalibrationMap:
    """Build a map, checking every value against the type of its field."""
    kind = all_maps().get(method)
    if kind is None:
        raise ArchiveError("unknown_method", f"unknown method {method!r}")
    hints = field_hints(kind)
    if is_inside and CalibrationMap in hints.values():
        raise ArchiveError("wrong_fields", "a nested map must not contain another map")
    values = {**Zeros()._asdict(), **parameters, **arrays}  # older archives lack these fields
    for name, hint in hints.items():
        if hint is CalibrationMap:
            inside = {key: values.pop(key) for key in arrays if key.startswith(f"{name}.")}
            named = {key.removeprefix(f"{name}."): array for key, array in inside.items()}
            values[name] = _inner(name, values.get(name), named)
        elif get_origin(hint) is tuple and isinstance(values.get(name), list):
            values[name] = tuple(values[name])
    if set(values) != set(hints):
        odd = sorted(set(values) ^ set(hints))[:MAX_NAMED]
        raise ArchiveError("wrong_fields", f"missing or unknown fields of {method!r}: {odd}")
    for name, hint in hints.items():
        rule = broken_rule(hint, values[name])
        if rule is not None:
            raise ArchiveError("wrong_fields", f"the field {name!r} must be {rule}")
    try:
        return kind(**values)
    except CalibrationError as error:
        raise ArchiveError("wrong_fields", str(error)) from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # untrusted arrays can have any shape, so checks that assume a shape can fail
        raise ArchiveError(
            "wrong_fields", f"the arrays have the wrong shapes for {method!r}: {error}"
        ) from error


def _inner(name: str, described: Any, arrays: dict[str, NDArray[Any]]) -> CalibrationMap:
    """Build the map that is nested in the field ``name``."""
    match described:
        case {"method": str() as method, "parameters": dict() as parameters, **rest} if not rest:
            return _build(method, parameters, arrays, is_inside=True)
    raise ArchiveError("wrong_fields", f"the field {name!r} must be a map")


def _open(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return an archive's header and array bytes after checking its hash and lengths."""
    if len(data) < PREFIX.size or data[: len(MAGIC)] != MAGIC:
        raise ArchiveError("not_an_archive", "not a calibrd archive (bad magic bytes)")
    magic, digest, length = PREFIX.unpack_from(data)
    if magic[-1] != FORMAT:
        raise ArchiveError(
            "unknown_format",
            f"this map uses format {magic[-1]}, but this library reads format {FORMAT}: "
            "upgrade calibrd",
        )
    body = memoryview(data)[8 + 32 :]
    header = _parse(bytes(body[4 : 4 + length])) if 4 + length <= len(body) else None
    expected = None if header is None else 4 + length + _array_bytes(header)
    if expected is not None and len(body) > expected and _hash_ok(body[:expected], digest):
        extra = len(body) - expected
        raise ArchiveError("trailing_bytes", f"{extra} bytes follow the end of the map")
    if not _hash_ok(body, digest):
        raise ArchiveError("wrong_hash", "the map is damaged: its bytes do not match its sha256")
    if header is None or expected != len(body):
        raise ArchiveError("wrong_length", "the map's header does not match its length")
    return header, body[4 + length :]


def _hash_ok(body: memoryview, digest: bytes) -> bool:
    return hashlib.sha256(body).digest() == digest


def _parse(text: bytes) -> dict[str, Any] | None:
    """Return the parsed header, or None if it is invalid.

    A matching hash does not prove that calibrd wrote the header, so every field is checked.
    """
    try:
        header = json.loads(text)
        arrays = header["arrays"]
        good = (
            isinstance(header["method"], str)
            and isinstance(header["parameters"], dict)
            and all(
                one["dtype"] in DTYPES
                and isinstance(one["shape"], list)
                and len(one["shape"]) <= 2
                and all(type(d) is int and 0 <= d < 2**32 for d in one["shape"])
                for one in arrays.values()
            )
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return header if good else None


def _array_bytes(header: dict[str, Any]) -> int:
    return sum(_size(one) for one in header["arrays"].values())


def _size(described: dict[str, Any]) -> int:
    size = int(described["dtype"][-1])
    for dimension in described["shape"]:
        size *= dimension
    return size


def _arrays(described: dict[str, Any], payload: memoryview) -> dict[str, NDArray[Any]]:
    arrays, offset = {}, 0
    for name, one in sorted(described.items()):
        raw = payload[offset : offset + _size(one)]
        offset += len(raw)
        array = np.frombuffer(raw, one["dtype"]).reshape(one["shape"])
        if not np.isfinite(array).all():
            raise ArchiveError(
                "wrong_fields", f"the array {name!r} contains NaN or infinite values"
            )
        arrays[name] = array.astype(array.dtype.newbyteorder("="))
        arrays[name].flags.writeable = False
    return arrays


@functools.cache  # reading a package's metadata takes milliseconds
def _libraries() -> dict[str, str]:
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    for name in ("calibrd", "torch"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
