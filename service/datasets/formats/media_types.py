"""Which formats are read and written, and how they are told apart."""

from __future__ import annotations

from enum import StrEnum

from service.errors import Unsupported


class Format(StrEnum):
    """How arrays travel."""

    NPY = "npy"
    NPZ = "npz"
    SAFETENSORS = "safetensors"
    JSON = "json"
    CSV = "csv"

    # an enum's own hash runs in Python, several times for every predict call
    __hash__ = str.__hash__

    @property
    def media_type(self) -> str:
        """The media type of bodies in this format."""
        return _TYPES[self]


_TYPES = {
    Format.NPY: "application/x-npy",
    Format.NPZ: "application/x-npz",
    Format.SAFETENSORS: "application/x-safetensors",
    Format.JSON: "application/json",
    Format.CSV: "text/csv",
}
MEDIA_TYPES = {
    **{media_type: one for one, media_type in _TYPES.items()},
    "application/numpy": Format.NPY,
    "application/x-numpy": Format.NPY,
    "application/zip": Format.NPZ,
    "application/vnd.safetensors": Format.SAFETENSORS,
}
ANSWERED = (Format.NPY, Format.NPZ, Format.SAFETENSORS, Format.JSON)
UNTOLD = (None, "", "application/octet-stream")


def format_of(content_type: str | None, head: bytes) -> Format:
    """The format that a content type names, or that the first bytes show if it names none.

    >>> format_of("application/json; charset=utf-8", b"").value
    'json'
    >>> format_of(None, bytes([0x93]) + b"NUMPY").value
    'npy'
    """
    found = MEDIA_TYPES.get(content_type or "")
    if found is not None:
        return found
    media_type = (content_type or "").partition(";")[0].strip().lower()
    found = _sniffed(head) if media_type in UNTOLD else MEDIA_TYPES.get(media_type)
    if found is None:
        raise Unsupported(
            "unsupported_media_type",
            f"{_said(media_type)}; send one of {', '.join(_TYPES.values())}",
            read=sorted(MEDIA_TYPES),
        )
    return found


def _said(media_type: str) -> str:
    if media_type in UNTOLD:
        return "the body is of no format that is read here, and no content type says which"
    return f"the content type {media_type[:80]!r} is not read here"


def _sniffed(head: bytes) -> Format | None:
    if head.startswith(b"\x93NUMPY"):
        return Format.NPY
    if head.startswith(b"PK\x03\x04"):
        return Format.NPZ
    if head[8:9] == b"{" and head[5:8] == b"\0\0\0":
        return Format.SAFETENSORS
    if head.lstrip()[:1] in (b"{", b"["):
        return Format.JSON
    return None
