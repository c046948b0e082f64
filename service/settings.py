"""All settings: the environment (``CALIBRD_*``), flags of the same names, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MEGABYTE = 1 << 20


class Settings(BaseSettings):
    """Every field is ``CALIBRD_<NAME>`` in the environment and ``--<name>`` on the command line."""

    model_config = SettingsConfigDict(
        env_prefix="CALIBRD_", frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on; others than loopback need a key."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    data_dir: Path = Path("calibrd-data")
    """Where the embedded database, blobs and uploads lie."""
    database_url: str = ""
    """SQLAlchemy URL; empty means SQLite in the data directory."""
    blobs_url: str = ""
    """A file:// or s3:// URL; empty means a folder in the data directory."""
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
    """Largest JSON body; send npy, npz or safetensors beyond it."""
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
    idempotency_hours: float = Field(24.0, gt=0)
    """Hours that an Idempotency-Key is remembered."""
    refresh_seconds: float = Field(1.0, gt=0, le=60)
    """How often alias moves and keys are looked up."""
    cached_maps: int = Field(1000, ge=1)
    """Maps kept in memory for predict."""

    @cached_property
    def database(self) -> str:
        """The database's URL."""
        if self.database_url:
            return self.database_url
        return f"sqlite:///{self.data_dir.resolve() / 'calibrd.db'}"

    @cached_property
    def blobs(self) -> str:
        """The blob store's URL."""
        return self.blobs_url or f"file://{self.data_dir.resolve() / 'blobs'}"

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
