"""Limits on a request's head, and the errors for requests that exceed them."""

from __future__ import annotations

from service.errors import Malformed, ServiceError, TooSlow, Unavailable

MAX_HEAD_BYTES = 1 << 16
MAX_HEADERS = 100
MAX_VALUE_BYTES = 1 << 13
MAX_COOKIE_BYTES = 1 << 14  # browsers send the cookies of all ports of a host
MAX_TARGET_BYTES = 1 << 13
MAX_PATH_BYTES = 1024  # far longer than any valid path
MAX_PARAMETERS = 200
MAX_PIPELINED = 2
MAX_PIPELINED_HEAD = 8192  # bytes


def malformed() -> Malformed:
    """Return the error for bytes that are not HTTP."""
    return Malformed(
        "malformed_request",
        "this is not a valid HTTP/1.1 request: its first line, a header or the framing of its"
        " body is malformed",
    )


def no_websockets() -> Malformed:
    """Return the error for a WebSocket handshake."""
    return Malformed(
        "no_websockets",
        "WebSockets are not supported: send the request without the Upgrade header; GET"
        " /v1/fits/{id}/events streams the events of a fit",
    )


def too_many_pipelined() -> Malformed:
    """Return the error for too many or too large pipelined requests."""
    return Malformed(
        "malformed_request",
        f"too many pipelined requests: at most {MAX_PIPELINED} may wait, with heads of at most "
        f"{MAX_PIPELINED_HEAD} bytes; read the responses first",
    )


def too_small_chunks() -> Malformed:
    """Return the error for chunks that are too small to be parsed efficiently."""
    return Malformed(
        "malformed_request", "the body arrives in chunks of a few bytes: send larger chunks"
    )


def truncated() -> Malformed:
    """Return the error for a body that is shorter than its stated length."""
    return Malformed(
        "truncated_body", "the connection closed before the body was complete: send it again"
    )


def too_large() -> ServiceError:
    """Return the error for a head that is too large."""
    rule = f"at most {MAX_HEADERS} headers and, with the request line, {MAX_HEAD_BYTES} bytes"
    return ServiceError(
        "request_header_fields_too_large", f"the headers are too large: {rule} are allowed"
    )


def too_long_value(name: bytes) -> ServiceError:
    """Return the error for a header value that is too long."""
    most = MAX_COOKIE_BYTES if name == b"cookie" else MAX_VALUE_BYTES
    shown = name[:40].decode("ascii", "replace")
    advice = "delete the cookies of this host" if name == b"cookie" else "shorten it"
    return ServiceError(
        "request_header_fields_too_large",
        f"the header {shown} has more than {most} bytes: {advice}",
    )


def too_long_path() -> ServiceError:
    """Return the error for a path that is too long."""
    return ServiceError(
        "request_uri_too_long", f"the path has more than {MAX_PATH_BYTES} bytes: shorten it"
    )


def too_long_query() -> ServiceError:
    """Return the error for a query that is too long."""
    return ServiceError(
        "request_uri_too_long",
        f"the URL is too long: at most {MAX_TARGET_BYTES} bytes and {MAX_PARAMETERS} parameters are"
        " allowed; GET predict accepts more bytes, but not more parameters",
    )


def unknown_coding() -> ServiceError:
    """Return the error for a Transfer-Encoding other than chunked."""
    return ServiceError("not_implemented", "the only supported Transfer-Encoding is chunked")


def too_slow(seconds: float) -> TooSlow:
    """Return the error for a head that takes too long."""
    return TooSlow("headers_timeout", f"the headers did not arrive within {seconds:g} seconds")


def too_many_heads() -> Unavailable:
    """Return the error for too many unfinished heads, per address or in total."""
    return Unavailable(
        "too_many_unfinished_requests",
        "too many requests have incomplete headers: send all headers at once",
    )
