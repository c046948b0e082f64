"""References to versions: ``name@production``, ``name@3``, ``name``."""

from __future__ import annotations

from typing import NamedTuple

from calibrd.models import Version
from calibrd.transport.names import NAME

DEFAULT_ALIAS = "production"


def checked_name(name: str) -> str:
    """Return a calibrator's name unchanged; raise ValueError if it is invalid."""
    if not NAME.fullmatch(name):
        raise ValueError(
            "a calibrator's name must be 1 to 64 characters from a-z, 0-9, '.', '_' and '-', "
            f"without '@', got {name!r}"
        )
    return name


def checked_alias(alias: str) -> str:
    """Return an alias unchanged; raise ValueError if it is invalid or a number."""
    if not NAME.fullmatch(alias) or alias.isdigit():
        raise ValueError(
            "an alias must be 1 to 64 characters from a-z, 0-9, '.', '_' and '-', and not "
            f"only digits, got {alias!r}"
        )
    return alias


class Reference(NamedTuple):
    """A reference to a version: the calibrator's name, and an alias or a number."""

    name: str
    ref: str

    @classmethod
    def of(cls, ref: str | Version) -> Reference:
        """Parse a reference; without ``@``, it refers to the production alias.

        >>> Reference.of("resnet50@3").number, Reference.of("resnet50").ref
        (3, 'production')
        """
        text = ref.reference if isinstance(ref, Version) else ref
        if not isinstance(text, str):
            raise TypeError(f"a reference must be a str or a Version, got {text!r}")
        name, at, which = text.partition("@")
        which = which if at else DEFAULT_ALIAS
        if not (NAME.fullmatch(name) and NAME.fullmatch(which)):
            raise ValueError(
                "a reference must be name@alias or name@number, each 1 to 64 characters from a-z, "
                f"0-9, '.', '_' and '-', got {text!r}"
            )
        return cls(name, which)

    @property
    def number(self) -> int | None:
        """The version number of a reference ``name@number``; None for other references."""
        return int(self.ref) if self.ref.isdigit() else None

    def __str__(self) -> str:
        return f"{self.name}@{self.ref}"
