"""What a user calls a version: ``name@production``, ``name@3``, ``name``."""

from __future__ import annotations

from typing import NamedTuple

from calibrd.models import Version
from calibrd.transport.names import NAME

DEFAULT_ALIAS = "production"


def checked_name(name: str) -> str:
    """The name of a calibrator alone; ValueError for all else, also for ``name@alias``."""
    if not NAME.fullmatch(name):
        raise ValueError(
            "a calibrator's name is of 1 to 64 letters a-z, digits, '.', '_' and '-', without "
            f"'@', got {name!r}"
        )
    return name


def checked_alias(alias: str) -> str:
    """The name of an alias; ValueError for all else, also for a version's number."""
    if not NAME.fullmatch(alias) or alias.isdigit():
        raise ValueError(
            "an alias is of 1 to 64 letters a-z, digits, '.', '_' and '-', not of digits alone, "
            f"got {alias!r}"
        )
    return alias


class Reference(NamedTuple):
    """A calibrator and which of its versions: an alias, or a number."""

    name: str
    ref: str

    @classmethod
    def of(cls, given: str | Version) -> Reference:
        """What was meant; without ``@`` it is the alias production.

        >>> Reference.of("resnet50@3").number, Reference.of("resnet50").ref
        (3, 'production')
        """
        if isinstance(given, Version):
            given = given.reference
        if not isinstance(given, str):
            raise TypeError(f"a version is called by a str or a Version, got {given!r}")
        name, at, ref = given.partition("@")
        ref = ref if at else DEFAULT_ALIAS
        if not (NAME.fullmatch(name) and NAME.fullmatch(ref)):
            raise ValueError(
                "a version is called name@alias or name@number, each of 1 to 64 letters a-z, "
                f"digits, '.', '_' and '-', got {given!r}"
            )
        return cls(name, ref)

    @property
    def number(self) -> int | None:
        """The version's number, if it is named by it."""
        return int(self.ref) if self.ref.isdigit() else None

    def __str__(self) -> str:
        return f"{self.name}@{self.ref}"
