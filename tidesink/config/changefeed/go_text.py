"""Option values as Go's standard library reads them, since that is what TiCDC reads them with.

Each raises ValueError with what to write instead.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_BOOLEANS: Final = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_SECOND: Final = 10**9


def boolean(text: str) -> bool:
    """``true`` or ``false`` as strconv.ParseBool takes them; an empty text is false, as in a query."""
    if not text:
        return False
    if text not in _BOOLEANS:
        raise ValueError("use true or false")
    return _BOOLEANS[text]


def integer(text: str, bits: int) -> int:
    """A decimal integer of so many bits; an empty text is 0, as in a query."""
    if text and not _INTEGER.fullmatch(text):
        raise ValueError("give a whole number")
    return in_range(int(text or "0"), bits)


def in_range(number: int, bits: int) -> int:
    """The number itself, if a signed integer of so many bits holds it."""
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"give a number below {1 << bits - 1}")
    return number


def duration(text: str) -> int:
    """A duration such as ``10s``, ``2m30s`` or ``100ms``, in nanoseconds."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError("give a number with a unit: 500ms, 10s, 2m30s")
    total = int(sum(Decimal(number) * _NANOSECONDS[unit] for number, unit in parts))
    return -total if text.startswith("-") else total


def shown_duration(nanoseconds: int) -> str:
    """A duration as Go prints it: ``2m0s``, ``1.5s``, ``100ms``."""
    size = abs(nanoseconds)
    sign = "-" if nanoseconds < 0 else ""
    if size == 0:
        return "0s"
    if size < _SECOND:
        unit = next(unit for unit in ("ms", "µs", "ns") if size >= _NANOSECONDS[unit])
        return f"{sign}{_fraction(size, _NANOSECONDS[unit])}{unit}"
    hours, rest = divmod(size, _NANOSECONDS["h"])
    minutes, rest = divmod(rest, _NANOSECONDS["m"])
    seconds = f"{_fraction(rest, _SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _fraction(size: int, unit: int) -> str:
    text = format(Decimal(size) / Decimal(unit), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
