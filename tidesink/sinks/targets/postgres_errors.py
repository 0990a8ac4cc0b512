"""Postgres's errors as tidesink's, by SQLSTATE and never by text: the texts may hold values of rows."""

from __future__ import annotations

from typing import Final

from tidesink.errors import (
    CommitUnknownError,
    SchemaRefusedError,
    TargetError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.sinks.targets.sql_limits import POSTGRES_LIMITS

# The connection was cut, or the server is going down or starting up: class 08, and these.
_CUT: Final = ("", "08", "57P01", "57P02", "57P03", "57P05", "25P03", "40003")
_LOCKED: Final = "others hold locks on the rows or the table; nothing of this batch was written"

# SQLSTATE or its class -> our class and what it means. The first row that fits wins.
_STATES: Final[tuple[tuple[str, type[TidesinkError], str], ...]] = (
    ("40001", TransientTargetError, _LOCKED),
    ("40P01", TransientTargetError, _LOCKED),
    ("55P03", TransientTargetError, _LOCKED),
    ("53", TransientTargetError, "the server has no room, memory or connections left"),
    ("57014", TransientTargetError, "a statement was cancelled; nothing of this batch was written"),
    (
        "25006",
        TransientTargetError,
        "the server takes no writes: target.url must name the primary",
    ),
    (
        "23505",
        TargetError,
        "a row has a value that another row has, in a column with a unique index that is not the key, and "
        "nothing was written. Rows that swap such values need the constraint DEFERRABLE; drop it, or make it "
        "so, at the target",
    ),
    (
        "23514",
        TargetError,
        "a value does not fit its column at the target, or a row breaks a CHECK of the table, and nothing "
        "was written: make the column wider, or drop the CHECK",
    ),
    (
        "23",
        TargetError,
        "a row breaks a constraint of the table, and nothing was written: drop it at the target",
    ),
    (
        "22",
        TargetError,
        "a value does not fit its column at the target, and nothing was written: was the column's type "
        "changed by hand?",
    ),
    ("28", TargetError, "the server refuses the user or the password"),
    ("3D000", TargetError, "there is no such database: make it first"),
    ("42501", TargetError, "the user may not do this: grant CREATE on the database and schema, or ownership"),
    ("42P10", SchemaRefusedError, "the table has no unique index on the key's columns: make its primary key"),
    ("42P01", TransientTargetError, "a table is gone that was there: was it dropped by another program?"),
    ("42701", TransientTargetError, "another worker of the table added a column at this moment"),
    (
        "54",
        SchemaRefusedError,
        f"Postgres has a limit that this table passes ({POSTGRES_LIMITS.columns:,} columns, 8 kB of a row "
        f"without its long values, {POSTGRES_LIMITS.key_bytes:,} bytes of a key)",
    ),
    ("42", TargetError, "Postgres refuses the statement: was the table changed by another program?"),
)


def code_of(exc: BaseException) -> str | None:
    """The SQLSTATE of a psycopg error; empty where the connection was cut, None for other exceptions."""
    import psycopg

    if not isinstance(exc, psycopg.Error):
        return None
    if exc.sqlstate:
        return exc.sqlstate
    return "" if isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError) else "XX000"


def error_of(code: str, *, table: str, committing: bool = False) -> TidesinkError:
    """The error to raise for a SQLSTATE, where a commit was under way or not."""
    if code.startswith(_CUT[1:]) or code == "":
        if committing:
            return CommitUnknownError(
                "the connection was cut during the commit, which may have happened: ask for the committed "
                "progress first",
                table=table,
            )
        return TransientTargetError(
            f"the Postgres server does not answer ({code or 'no connection'})", table=table
        )
    for state, error, message in _STATES:
        if code.startswith(state):
            return error(f"{message} (SQLSTATE {code})", table=table)
    return TargetError(f"Postgres refuses (SQLSTATE {code}), and nothing was written", table=table)
