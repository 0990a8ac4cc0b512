"""Converts errors of a database server to tidesink's errors, without row values.

A server's message may contain row values. It is shown only for error codes whose messages contain nothing but
names of objects and settings. Each dialect lists these codes. Postgres also sends the names of the table, the
column and the constraint in separate fields, which are shown for every code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidesink.errors import TidesinkError


class Fault(NamedTuple):
    """A driver's exception, reduced to what may be shown.

    ``code``: SQLSTATE or error number; empty for a lost connection.
    ``words``: the server's message; empty if it may contain row values.
    ``location``: names from the error's separate fields, such as ``column total``.
    """

    code: str
    words: str = ""
    location: str = ""


class Meaning(NamedTuple):
    """The explanation of a database server's error code for users.

    ``error``: the error class to raise.
    ``cause``: what happened, as a sentence without its full stop.
    ``remedy``: what to do next, as full sentences.
    """

    error: type[TidesinkError]
    cause: str
    remedy: str


def explained(
    meaning: Meaning, fault: Fault, number: str, *, table: str, user: str, grants: Sequence[str] = ()
) -> TidesinkError:
    """Return the error to raise: its message has the cause, the server's own message, and the remedy.

    ``number``: the error code with its kind, as in ``SQLSTATE 42501``.
    ``grants``: GRANT statements for the user's missing privileges. They replace the remedy.
    """
    cause = meaning.cause.replace("{user}", f"'{user}'" if user else "")
    where = f" in {fault.location}" if fault.location else ""
    message = ": ".join(part for part in (number, fault.words) if part)
    remedy = meaning.remedy.replace("{user}", user or "…")
    if grants:
        remedy = f"As an administrator of the target, run: {'; '.join(grants)}"
    return meaning.error(f"{' '.join(cause.split())}{where} ({message}). {remedy}", table=table)
