"""All settings: the environment (``CALIBRD_*``), flags of the same names, and their defaults."""

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
# every variable that the SDK reads: a test compares them with its sources and the docs
SDK_VARIABLES = ("CALIBRD_API_KEY", "CALIBRD_CACHE_DIR", "CALIBRD_STATE_DIR", "CALIBRD_URL")
# read by others: the SDK, the supervisor's workers and the tests
OTHER_VARIABLES = re.compile(rf"{'|'.join(SDK_VARIABLES)}|CALIBRD_(SUPERVISOR|SLOT|TEST_.*)")


class Settings(BaseSettings):
    """Every field is ``CALIBRD_<NAME>`` in the environment and ``--<name>`` on the command line."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on; others than loopback need a key."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    data_dir: Path = Path("calibrd-data")
    """Where the embedded database, blobs and uploads lie."""
    database_url: str = ""
    """A sqlite:///file or postgresql:// URL; empty means SQLite in the data directory."""
    database_seconds: float = Field(3.0, ge=1)
    """Longest time that a call waits for PostgreSQL, or a statement takes on SQLite, before 503."""
    blobs_url: str = ""
    """A file:// or s3:// URL; empty means a folder in the data directory."""
    sign_endpoint: str = ""
    """Where clients reach the S3 server, if not where the service does; for presigned URLs."""
    workers: int = Field(1, ge=0, le=64)
    """Worker processes that `serve` starts beside the API."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """One JSON object a line, or text for people; auto is text on a terminal, JSON elsewhere."""
    max_upload_bytes: int = Field(4096 * MEGABYTE, ge=1024)
    """Largest dataset, as sent and unpacked."""
    max_part_bytes: int = Field(256 * MEGABYTE, ge=1024)
    """Largest part of an upload in parts."""
    max_open_uploads: int = Field(200, ge=1)
    """Most uploads in parts of a workspace that are not committed."""
    max_open_upload_bytes: int = Field(0, ge=0)
    """Most bytes of their parts together; 0 means 4 times max_upload_bytes."""
    max_workspace_bytes: int = Field(0, ge=0)
    """Most bytes that a workspace stores; 0 means a quarter of the disk, any number on S3."""
    max_predict_bytes: int = Field(32 * MEGABYTE, ge=1024)
    """Largest body of a predict call, as sent and unpacked."""
    body_memory_bytes: int = Field(256 * MEGABYTE, ge=MEGABYTE)
    """Memory for large bodies and answers under way; more wait. A workspace gets half of it."""
    max_json_bytes: int = Field(16 * MEGABYTE, ge=1024)
    """Largest JSON or CSV body; send npy, npz or safetensors beyond it."""
    max_classes: int = Field(100_000, ge=2)
    """Most classes of a dataset."""
    body_timeout: float = Field(20.0, gt=0)
    """Seconds without a byte of a body before 408."""
    body_least_rate: int = Field(16384, ge=0)
    """Bytes per second that a body must average after body_timeout."""
    body_seconds: float = Field(3600.0, gt=0)
    """Most seconds that a body may take; larger uploads are sent in parts."""
    response_timeout: float = Field(20.0, gt=0)
    """Seconds after which a client that does not read its answer is disconnected."""
    max_requests_per_key: int = Field(256, ge=1)
    """Requests of one key under way at once; more get 429."""
    max_waits_per_key: int = Field(256, ge=1)
    """Event streams and waiting requests of one key at once; more get 429."""
    max_connections_per_address: int = Field(2048, ge=16)
    """Open connections of one address; beyond it idle ones are closed. Raise it behind a proxy."""
    max_open_fits: int = Field(100, ge=1)
    """Most fits of a workspace that wait or run; more get 429."""
    fit_seconds: float = Field(3600.0, gt=0)
    """Time limit of a fit, from its first start."""
    fit_memory_bytes: int = Field(4096 * MEGABYTE, ge=MEGABYTE)
    """Most memory that a fit may need by its estimate."""
    fit_attempts: int = Field(3, ge=1)
    """Starts of a fit before it is given up as worker_lost."""
    dataset_days: float = Field(0.0, ge=0)
    """Days after which datasets are deleted; 0 keeps them."""
    sweep_hours: float = Field(24.0, ge=0)
    """Hours, at least 2, after which stored bytes that nothing names are deleted; 0 keeps them."""
    idempotency_hours: float = Field(24.0, gt=0)
    """Hours that an Idempotency-Key is remembered."""
    refresh_seconds: float = Field(1.0, gt=0, le=60)
    """How often alias moves and keys are looked up."""
    map_cache_bytes: int = Field(256 * MEGABYTE, ge=1024)
    """Memory for the maps that predict applies."""
    render_seconds: float = Field(20.0, gt=0)
    """Time limit for drawing a report."""

    @field_validator("database_url")
    @classmethod
    def _names_a_database(cls, url: str) -> str:
        if url and not re.match(r"(sqlite:///|postgresql(\+psycopg)?://).", url):
            raise ValueError("must be sqlite:///file or postgresql://user:password@host/name")
        return url

    @field_validator("blobs_url")
    @classmethod
    def _names_a_blob_store(cls, url: str) -> str:
        if url and not re.match(r"(file:///|s3://)[^/]", url):
            raise ValueError("must be file:///folder or s3://bucket/prefix")
        return url

    @field_validator("sign_endpoint")
    @classmethod
    def _names_a_server(cls, url: str) -> str:
        if url and not re.match(r"https?://[^/]", url):
            raise ValueError("must be http://host:port or https://host")
        return url

    @field_validator("sweep_hours")
    @classmethod
    def _leaves_time_to_name_them(cls, hours: float) -> float:
        if 0 < hours < 2:
            raise ValueError(f"must be 0 or at least 2, got {hours:g}")
        return hours

    @cached_property
    def database(self) -> str:
        """The database's URL."""
        if self.database_url:
            return self.database_url
        return f"sqlite:///{quote(str(self.data_dir.resolve() / 'calibrd.db'))}"

    @cached_property
    def blobs(self) -> str:
        """The blob store's URL."""
        return self.blobs_url or (self.data_dir.resolve() / "blobs").as_uri()

    @cached_property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def settings_from(given: Mapping[str, Any]) -> Settings:
    """The settings, with those that were given as flags; other names are left alone."""
    return Settings(**{name: given[name] for name in Settings.model_fields if name in given})


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """Variables that look like settings and are none, each with the setting it may have meant.

    >>> unknown_variables(["CALIBRD_DATADIR", "CALIBRD_PORT", "CALIBRD_XYZ", "HOME"])
    {'CALIBRD_DATADIR': 'CALIBRD_DATA_DIR', 'CALIBRD_XYZ': None}
    """
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    unknown = {}
    for name in sorted(names):
        # settings are read without regard to case
        asked = name.upper()
        if not asked.startswith(PREFIX) or asked in known or OTHER_VARIABLES.fullmatch(name):
            continue
        unknown[name] = next(iter(difflib.get_close_matches(asked, known, 1, 0.8)), None)
    return unknown
