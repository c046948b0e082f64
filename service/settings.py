"""Settings from environment variables (``CALIBRD_*``) and flags with the same names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

MEGABYTE = 1 << 20
HOUR, DAY = 3600.0, 86400.0
PREFIX = "CALIBRD_"
# all variables that the SDK reads; a test checks them against its sources and the docs
SDK_VARIABLES = ("CALIBRD_API_KEY", "CALIBRD_CACHE_DIR", "CALIBRD_STATE_DIR", "CALIBRD_URL")
# variables that are not settings but belong to the SDK, the supervisor's workers or the tests
OTHER_VARIABLES = re.compile(rf"{'|'.join(SDK_VARIABLES)}|CALIBRD_(SUPERVISOR|SLOT|TEST_.*)")


class Settings(BaseSettings):
    """Settings: ``CALIBRD_<NAME>`` in the environment and ``--<name>`` on the command line."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on; any address other than loopback requires a key."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    data_dir: Path = Path("calibrd-data")
    """Directory of the embedded database, blobs and uploads."""
    database_url: str = ""
    """A sqlite:///file or postgresql:// URL; empty means SQLite in the data directory."""
    database_seconds: float = Field(3.0, ge=1)
    """Seconds to wait for PostgreSQL, or for an SQLite statement, before responding with 503."""
    blobs_url: str = ""
    """A file:// or s3:// URL; empty means a folder in the data directory."""
    sign_endpoint: str = ""
    """S3 URL for clients, used in signed URLs; empty means the same URL as for the service."""
    workers: int = Field(1, ge=0, le=64)
    """Number of worker processes that `serve` starts alongside the API."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log events: debug, info, warning or error."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """json (an object per line), console (text), or auto: console on a terminal, json elsewhere."""
    max_upload_bytes: int = Field(4096 * MEGABYTE, ge=1024)
    """Maximum size of a dataset in bytes, both as sent and uncompressed."""
    max_part_bytes: int = Field(256 * MEGABYTE, ge=1024)
    """Maximum size of one part of an upload, in bytes."""
    max_open_uploads: int = Field(200, ge=1)
    """Maximum number of uncommitted uploads sent in parts, per workspace."""
    max_open_upload_bytes: int = Field(0, ge=0)
    """Maximum total bytes of uncommitted parts per workspace; 0 means 4 times max_upload_bytes."""
    max_workspace_bytes: int = Field(0, ge=0)
    """Maximum bytes stored per workspace; 0 means a quarter of the disk, or no limit on S3."""
    max_predict_bytes: int = Field(32 * MEGABYTE, ge=1024)
    """Maximum size of a predict request body in bytes, both as sent and uncompressed."""
    body_memory_bytes: int = Field(256 * MEGABYTE, ge=MEGABYTE)
    """Memory for large bodies and responses, at most half per workspace; further requests wait."""
    max_json_bytes: int = Field(16 * MEGABYTE, ge=1024)
    """Maximum size of a JSON or CSV body; send larger data as npy, npz or safetensors."""
    max_classes: int = Field(100_000, ge=2)
    """Maximum number of classes in a dataset."""
    body_timeout: float = Field(20.0, gt=0)
    """Seconds to wait for the next byte of a body before responding with 408."""
    body_least_rate: int = Field(16384, ge=0)
    """Minimum average bytes per second of a body, once body_timeout has passed."""
    body_seconds: float = Field(3600.0, gt=0)
    """Maximum seconds for receiving a whole body; send larger uploads in parts."""
    response_timeout: float = Field(20.0, gt=0)
    """Seconds after which a client that is not reading its response is disconnected."""
    max_requests_per_key: int = Field(256, ge=1)
    """Maximum number of concurrent requests per key; further ones get 429."""
    max_waits_per_key: int = Field(256, ge=1)
    """Maximum number of event streams and waiting requests per key; further ones get 429."""
    max_connections_per_address: int = Field(1024, ge=16)
    """Maximum open connections per address before idle ones are closed; raise it behind a proxy."""
    max_open_fits: int = Field(100, ge=1)
    """Maximum number of waiting and running fits per workspace; further ones get 429."""
    max_running_fits: int | None = Field(None, ge=1)
    """Maximum running fits per workspace, to keep workers free for others; default: no limit."""
    fit_seconds: float = Field(3600.0, gt=0)
    """Time limit of a fit, from its first start."""
    fit_memory_bytes: int = Field(4096 * MEGABYTE, ge=MEGABYTE)
    """Maximum estimated memory of a fit."""
    fit_attempts: int = Field(3, ge=1)
    """Maximum number of attempts before a fit fails with worker_lost."""
    dataset_days: float = Field(0.0, ge=0)
    """Days after which datasets are deleted; 0 keeps them forever."""
    sweep_hours: float = Field(24.0, ge=0)
    """Hours (at least 2) after which orphaned blobs are deleted; 0 keeps them."""
    idempotency_hours: float = Field(24.0, gt=0)
    """Hours for which an Idempotency-Key and its response are stored."""
    refresh_seconds: float = Field(1.0, gt=0, le=60)
    """Seconds between checks for moved aliases and changed keys."""
    map_cache_bytes: int = Field(256 * MEGABYTE, ge=1024)
    """Memory for the maps used by predict."""
    render_seconds: float = Field(20.0, gt=0)
    """Time limit for rendering a report."""
    help_dir: Path = Path("site")
    """Folder with the documentation built by `make docs`; served at /help if it exists."""

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, url: str) -> str:
        if url and not re.match(r"(sqlite:///|postgresql(\+psycopg)?://).", url):
            raise ValueError("must be sqlite:///file or postgresql://user:password@host/name")
        return url

    @field_validator("blobs_url")
    @classmethod
    def _check_blobs_url(cls, url: str) -> str:
        if url and not re.match(r"(file:///|s3://)[^/]", url):
            raise ValueError("must be file:///folder or s3://bucket/prefix")
        return url

    @field_validator("sign_endpoint")
    @classmethod
    def _check_sign_endpoint(cls, url: str) -> str:
        if url and not re.match(r"https?://[^/]", url):
            raise ValueError("must be http://host:port or https://host")
        return url

    @field_validator("sweep_hours")
    @classmethod
    def _check_sweep_hours(cls, hours: float) -> float:
        if 0 < hours < 2:
            raise ValueError(f"must be 0 or at least 2, got {hours:g}")
        return hours

    @cached_property
    def database(self) -> str:
        """The URL of the database."""
        if self.database_url:
            return self.database_url
        return f"sqlite:///{quote(str(self.data_dir.resolve() / 'calibrd.db'))}"

    @cached_property
    def blobs(self) -> str:
        """The URL of the blob store."""
        return self.blobs_url or (self.data_dir.resolve() / "blobs").as_uri()

    @cached_property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def settings_from(flags: Mapping[str, Any]) -> Settings:
    """Return the settings; flags take precedence, and other flags are ignored."""
    return Settings(**{name: flags[name] for name in Settings.model_fields if name in flags})


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """Return variables that look like settings but are not, each with the most similar setting.

    >>> unknown_variables(["CALIBRD_DATADIR", "CALIBRD_PORT", "CALIBRD_XYZ", "HOME"])
    {'CALIBRD_DATADIR': 'CALIBRD_DATA_DIR', 'CALIBRD_XYZ': None}
    """
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    unknown = {}
    for name in sorted(names):
        # settings are case-insensitive
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in known or OTHER_VARIABLES.fullmatch(name):
            continue
        unknown[name] = next(iter(difflib.get_close_matches(upper, known, 1, 0.8)), None)
    return unknown
