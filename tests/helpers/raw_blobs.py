"""What lies in a blob store of either backend: seen and changed behind the service's back."""

from __future__ import annotations

import obstore

from service.maintenance.sweep import TOKEN
from service.storage.blobs import Blobs


def keys(blobs: Blobs) -> list[str]:
    """The keys of all blobs, in order; without the sweeper's own."""
    return sorted(blob.key for blob in blobs.list() if blob.key != TOKEN)


def content(blobs: Blobs, key: str) -> bytes:
    """The bytes of a blob, whatever they are."""
    return bytes(obstore.get(blobs._store, key).bytes())


def overwrite(blobs: Blobs, key: str, content: bytes) -> None:
    """Put other bytes under a key."""
    obstore.put(blobs._store, key, content)


def remove(blobs: Blobs, key: str) -> None:
    """Take a blob away."""
    obstore.delete(blobs._store, key)


def only_key(blobs: Blobs, ending: str = "") -> str:
    """The key of the one blob whose key ends so."""
    (found,) = [key for key in keys(blobs) if key.endswith(ending)]
    return found
