"""Callers and their scopes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """Permissions of a key; any key may read calibrators, versions, reports and runs."""

    PREDICT = "predict"  # apply maps over HTTP
    FIT = "fit"  # upload datasets, start and cancel fits, register versions, report runs
    PROMOTE = "promote"  # move aliases, edit tags and descriptions
    ADMIN = "admin"  # all of the above, and manage keys and read metrics


@dataclass(frozen=True)
class Principal:
    """The caller of a request: its workspace, its name in histories (``actor``) and its scopes.

    ``key`` is the id of the key that was sent, or None if no key is required.
    """

    workspace: str
    actor: str
    scopes: frozenset[Scope]
    key: str | None = None

    @property
    def owner(self) -> str:
        """The name under which this caller's requests count towards its limits."""
        return self.key or self.actor

    def may(self, scope: Scope) -> bool:
        """Return whether this caller has the scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes
