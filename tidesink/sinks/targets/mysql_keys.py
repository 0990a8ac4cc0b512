"""Whether a MySQL table tells its keys apart as their bytes do, has them in a unique index, and keeps values.

A table made by another hand may compare ``a`` with ``A`` or ``a `` as equal: one row would then overwrite
the other without a word. Another may put the time into a column by itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.targets.identifier import quote_mysql
from tidesink.sinks.targets.sql_place import Place

_EVERY_BYTE: Final = re.compile(r"utf8mb4_0900_bin|binary|\w+_nopad_bin")
# Fixed lengths lose what is at the end of a value: spaces, or bytes of zero.
_FIXED: Final = re.compile(r"(char|binary)(\([0-9]+\))")


def check_keys(cursor: Any, place: Place, keys: Collection[str], collation: str) -> None:
    """Look at the key's columns (quoted, in lower case); ``collation`` is the one to name as right.

    Raises:
        SchemaRefusedError: a column takes different values for one.
    """
    cursor.execute(f"SHOW FULL COLUMNS FROM {place.location}")
    for name, found, compared, *_ in cursor.fetchall():
        if quote_mysql(name).lower() not in keys:
            continue
        fixed = _FIXED.fullmatch(found)
        if fixed:
            why, right = f"is {found}, which drops what ends a value", f"var{found}"
        elif compared is not None and not _EVERY_BYTE.fullmatch(compared):
            why, right = f"has the collation {compared}", found
        else:
            continue
        if compared is not None:
            right += f" CHARACTER SET utf8mb4 COLLATE {collation}"
        raise SchemaRefusedError(
            f"the key column {name} of {place.shown} {why}: different keys (such as 'a' and 'A', or 'a' and "
            "'a ') would be one row there, and overwrite each other. Change it, and start again: "
            f"ALTER TABLE {place.location} MODIFY {quote_mysql(name)} {right} NOT NULL",
            table=str(place.source),
            column=name,
        )


def only_unique(cursor: Any, place: Place, keys: Collection[str]) -> bool:
    """Whether the key is the table's one unique index.

    Raises:
        SchemaRefusedError: it has none on the key.
    """
    cursor.execute(f"SHOW INDEX FROM {place.location}")
    unique: dict[str, set[str]] = {}
    for row in cursor.fetchall():
        if not row[1]:  # Non_unique
            unique.setdefault(row[2], set()).add(_indexed(row[4], row[7]))
    if set(keys) not in unique.values():
        raise SchemaRefusedError(
            f"{place.shown} has no unique index on the key's columns, each as a whole: make its primary key",
            table=str(place.source),
        )
    return all(found == set(keys) for found in unique.values())


def _indexed(column: str | None, length: int | None) -> str:
    """A part of an index, quoted and in lower case; that of an expression, or of a prefix, is no column's."""
    return quote_mysql(column).lower() if column and length is None else ""


def check_kept(cursor: Any, place: Place, columns: Collection[str]) -> None:
    """Look at the columns (in lower case) that get the source's values.

    A TIMESTAMP may be given the time by the server: at each change of its row, and, where
    ``explicit_defaults_for_timestamp`` is off, in place of NULL.

    Raises:
        SchemaRefusedError: one would not keep what is written.
    """
    cursor.execute("SELECT @@explicit_defaults_for_timestamp")
    explicit = bool(cursor.fetchone()[0])
    cursor.execute(f"SHOW FULL COLUMNS FROM {place.location}")
    for name, found, _, null, key, _, extra, *_ in cursor.fetchall():
        fills = not explicit and found.startswith("timestamp") and null != "YES" and key != "PRI"
        if name.lower() in columns and (fills or "on update" in extra.lower()):
            right = f"{found} NULL" if key != "PRI" else f"{found} NOT NULL{default_of_key(found)}"
            raise SchemaRefusedError(
                f"the server puts the time into the column {name} of {place.shown} by itself, in place of "
                "the source's value, when a row is changed or has none. Change it, and start again: "
                f"ALTER TABLE {place.location} MODIFY {quote_mysql(name)} {right}",
                table=str(place.source),
                column=name,
            )


def default_of_key(found: str) -> str:
    """What a key's column says besides, so that a server does not change a TIMESTAMP with its row.

    Where ``explicit_defaults_for_timestamp`` is off, as it was in MariaDB before 10.10, it does so to the
    first one that takes no NULL and has no default.
    """
    return " DEFAULT '1970-01-01 00:00:01'" if found.startswith("timestamp") else ""
