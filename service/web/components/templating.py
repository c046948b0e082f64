"""The Jinja environment of the pages, and its filters."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from calibrators.fitting.fallback import fallback_sentence

MISSING = "\N{EN DASH}"
UNITS = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min"))
JUST_NOW_SECONDS = 10


@cache
def environment() -> Environment:
    """Return the Jinja environment; it escapes every string."""
    made = Environment(
        loader=PackageLoader("service.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        sentence=sentence,
        fallback=fallback_sentence,
        words=words,
        moment=moment,
        percent=percent,
        number=number,
        day=day,
    )
    return made


def words(text: str) -> Markup:
    """Render text as HTML; parts in backticks become code."""
    parts = re.split(r"``?([^`]+)``?", str(text).strip())
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def sentence(text: str) -> str:
    """Capitalise the first letter of a string.

    >>> sentence("ECE is lower"), sentence("smart is simpler")
    ('ECE is lower', 'Smart is simpler')
    """
    return text[:1].upper() + text[1:]


def percent(share: float | None, digits: int = 2) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.0123), percent(None)
    ('1.23 %', '–')
    """
    return MISSING if share is None else f"{100 * share:.{digits}f} %"


def number(value: float | None, digits: int = 4, scale: float = 1.0) -> str:
    """Format a number with ``digits`` decimals.

    >>> number(0.0123, 2, scale=100), number(-1.5, 1), number(None)
    ('1.23', '−1.5', '–')
    """
    if value is None:
        return MISSING
    return f"{scale * value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def moment(seconds: float | None) -> str:
    """Render a time relative to now, with the exact time as a tooltip."""
    if seconds is None:
        return MISSING
    at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=0)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S"), ago(time.time() - seconds)
    )


def day(seconds: float) -> str:
    """Format a time as a date.

    >>> day(0.0)
    '1970-01-01'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def ago(seconds: float) -> str:
    """Format a time difference in words.

    >>> ago(3), ago(75), ago(7300), ago(-90000)
    ('just now', '1 min ago', '2 h ago', 'in 1 d')
    """
    length = abs(seconds)
    if length < JUST_NOW_SECONDS:
        return "just now"
    size, unit = next((one for one in UNITS if length >= one[0]), (1, "s"))
    while_ = f"{int(length // size)} {unit}"
    return f"{while_} ago" if seconds > 0 else f"in {while_}"
