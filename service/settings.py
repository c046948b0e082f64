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
# read by others: the supervisor's workers, the SDK and the tests
OTHER_VARIABLES = re.compile(r"CALIBRD_(SUPERVISOR|SLOT|URL|API_KEY|CACHE_DIR|TEST_.*)")


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
    max_predict_bytes: int = Field(64 * MEGABYTE, ge=1024)
    """Largest body of a predict call, as sent and unpacked."""
    max_json_bytes: int = Field(16 * MEGABYTE, ge=1024)
    """Largest JSON or CSV body; send npy, npz or safetensors beyond it."""
    max_classes: int = Field(100_000, ge=2)
    """Most classes of a dataset."""
    body_timeout: float = Field(20.0, gt=0)
    """Seconds without a byte of a body before 408."""
    body_least_rate: int = Field(1024, ge=0)
    """Bytes per second that a body must average after body_timeout."""
    fit_seconds: float = Field(3600.0, gt=0)
    """Time limit of a fit, from its first start."""
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
    cached_maps: int = Field(1000, ge=1)
    """Maps kept in memory for predict."""

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
