"""What a database target reports of an error, and what of it may be shown.

A server's message may hold values of rows. It is shown only for codes whose messages hold nothing but names
of objects and settings; each dialect has a list of them. Where the driver has fields for the names
(Postgres), these are shown for every code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidesink.errors import TidesinkError


class Fault(NamedTuple):
    """An error of the driver's.

    ``code``: SQLSTATE or number; empty for a connection that was cut. ``words``: The server's message, which
    holds no value, or empty. ``location``: Names from the driver's fields, such as ``column total``.
    """

    code: str
    words: str = ""
    location: str = ""


class Meaning(NamedTuple):
    """What a code means: the class of our error, the cause without its full stop, and what to do next."""

    error: type[TidesinkError]
    cause: str
    remedy: str


def explained(
    meaning: Meaning, fault: Fault, number: str, *, table: str, user: str, grants: Sequence[str] = ()
) -> TidesinkError:
    """The error for a fault: the cause, the server's own words, and what to do next.

    ``number``: the code with its kind, as in ``SQLSTATE 42501``. ``grants``: statements that give the user
    what it lacks; they replace the remedy.
    """
    cause = meaning.cause.replace("{user}", f"'{user}'" if user else "")
    where = f" in {fault.location}" if fault.location else ""
    said = ": ".join(part for part in (number, fault.words) if part)
    remedy = meaning.remedy.replace("{user}", user or "…")
    if grants:
        remedy = f"As an administrator of the target, run: {'; '.join(grants)}"
    return meaning.error(f"{' '.join(cause.split())}{where} ({said}). {remedy}", table=table)
