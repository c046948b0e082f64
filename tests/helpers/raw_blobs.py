"""Direct access to the blobs of either backend, bypassing the service."""

from __future__ import annotations

import obstore

from service.maintenance.sweep import TOKEN
from service.storage.blobs import Blobs
from service.storage.store_identity import ID_KEY


def keys(blobs: Blobs) -> list[str]:
    """Return the keys of all blobs in order, except the service's own notes."""
    return sorted(blob.key for blob in blobs.list() if blob.key not in (TOKEN, ID_KEY))


def content(blobs: Blobs, key: str) -> bytes:
    """Return the bytes of a blob, without checks."""
    return bytes(obstore.get(blobs._store, key).bytes())


def overwrite(blobs: Blobs, key: str, content: bytes) -> None:
    """Overwrite the bytes of a key."""
    obstore.put(blobs._store, key, content)


def remove(blobs: Blobs, key: str) -> None:
    """Remove a blob."""
    obstore.delete(blobs._store, key)


def only_key(blobs: Blobs, ending: str = "") -> str:
    """Return the key of the only blob whose key ends in a string."""
    (found,) = [key for key in keys(blobs) if key.endswith(ending)]
    return found
