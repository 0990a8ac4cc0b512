"""Errors of a database target, and which parts of them may be shown.

A server's message may contain row values. It is shown only for codes whose messages contain nothing but names
of objects and settings; each dialect lists these codes. If the driver has separate fields for the names
(Postgres), they are shown for every code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidesink.errors import TidesinkError


class Fault(NamedTuple):
    """A driver error.

    ``code``: SQLSTATE or error number; empty for a lost connection.
    ``words``: the server's message if it contains no row value, or empty.
    ``location``: names from the driver's fields, such as ``column total``.
    """

    code: str
    words: str = ""
    location: str = ""


class Meaning(NamedTuple):
    """The meaning of a code: our error's class, the cause without its full stop, and what to do next."""

    error: type[TidesinkError]
    cause: str
    remedy: str


def explained(
    meaning: Meaning, fault: Fault, number: str, *, table: str, user: str, grants: Sequence[str] = ()
) -> TidesinkError:
    """Return the error for a fault: the cause, the server's own message, and what to do next.

    ``number``: the code with its kind, as in ``SQLSTATE 42501``.
    ``grants``: statements that grant the user what it lacks. They replace the remedy.
    """
    cause = meaning.cause.replace("{user}", f"'{user}'" if user else "")
    where = f" in {fault.location}" if fault.location else ""
    said = ": ".join(part for part in (number, fault.words) if part)
    remedy = meaning.remedy.replace("{user}", user or "…")
    if grants:
        remedy = f"As an administrator of the target, run: {'; '.join(grants)}"
    return meaning.error(f"{' '.join(cause.split())}{where} ({said}). {remedy}", table=table)
