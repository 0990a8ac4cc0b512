"""The privileges that a worker needs at a SQL target, and the GRANT statements for the missing ones.

In Postgres, functions such as ``has_table_privilege`` report each privilege. In MySQL and MariaDB, the text
of ``SHOW GRANTS`` is parsed, which includes the privileges of active roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from tidesink.sinks.targets.sharing import quote_mysql, quote_postgres
from tidesink.sinks.targets.sql.location import LEDGER, SHARDS, Place

_ROWS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")

# A privilege on every column is enough instead of one on the table. DELETE exists only for tables.
_OF_TABLES: Final = """
SELECT c.relname, pg_has_role(c.relowner, 'USAGE'),
(SELECT bool_and(has_column_privilege(c.oid, a.attnum, 'SELECT')) FROM pg_attribute a
 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
(SELECT bool_and(has_column_privilege(c.oid, a.attnum, 'INSERT')) FROM pg_attribute a
 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
(SELECT bool_and(has_column_privilege(c.oid, a.attnum, 'UPDATE')) FROM pg_attribute a
 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
has_table_privilege(c.oid, 'DELETE')
FROM pg_class c WHERE c.relnamespace = %s::oid AND c.relname = ANY(%s) AND c.relkind IN ('r', 'p')
ORDER BY c.relname
"""


def postgres_grants(cursor: Any, place: Place, *, changes: bool) -> list[str]:
    """Return the statements that grant the session's user its missing privileges for a target table.

    ``changes``: tidesink also alters the table's columns, which only the table's owner may do.
    """
    cursor.execute(
        "SELECT quote_ident(current_user), quote_ident(current_database()), "
        "has_database_privilege(current_database(), 'CREATE'), n.oid, "
        "has_schema_privilege(n.oid, 'USAGE'), has_schema_privilege(n.oid, 'CREATE') "
        "FROM (VALUES (1)) AS one LEFT JOIN pg_namespace n ON n.nspname = %s",
        (place.schema,),
    )
    user, database, may_create, namespace, may_use, may_make = cursor.fetchone()
    if namespace is None:
        return [] if may_create else [f"GRANT CREATE ON DATABASE {database} TO {user}"]
    statements = []
    # CREATE on the schema, because each batch creates a staging table in it.
    lacks = [right for right, held in (("USAGE", may_use), ("CREATE", may_make)) if not held]
    if lacks:
        statements.append(f"GRANT {', '.join(lacks)} ON SCHEMA {quote_postgres(place.schema)} TO {user}")
    cursor.execute(_OF_TABLES, (namespace, [place.name, LEDGER, SHARDS]))
    for name, owns, *held in cursor.fetchall():
        lacks = [right for right, has in zip(_ROWS, held, strict=True) if not has]
        if lacks:
            statements.append(f"GRANT {', '.join(lacks)} ON {place.beside(name)} TO {user}")
        if changes and name == place.name and not owns:
            statements.append(f"ALTER TABLE {place.beside(name)} OWNER TO {user}")
    return statements


# Matches ``GRANT SELECT, INSERT ON `shop`.* TO …``. Names are not quoted if sql_quote_show_create is off.
# Grants on a single table are ignored, because staging tables and the ledger in the same database need them
# too.
_GRANT: Final = re.compile(
    r"GRANT (?P<rights>.+?) ON (?P<database>\*|`(?:[^`]|``)+`|[^`\s.]+)\.\* TO ", re.DOTALL
)
_ALL: Final = "ALL PRIVILEGES"
_OF_DATABASES: Final = (*_ROWS, "CREATE", "DROP", "CREATE TEMPORARY TABLES")


def mysql_grants(cursor: Any, place: Place, *, changes: bool) -> list[str]:
    """Return the statement that grants the session's user its missing privileges for a target table's
    database.

    ``changes``: tidesink also alters the table's columns.
    """
    cursor.execute("SHOW GRANTS")
    held = held_rights((str(row[0]) for row in cursor.fetchall()), place.schema)
    if held is None:
        return []
    wanted = (*_OF_DATABASES, *(("ALTER",) if changes else ()))
    lacks = [right for right in wanted if right not in held and _ALL not in held]
    if not lacks:
        return []
    cursor.execute("SELECT CURRENT_USER()")
    name, _, host = str(cursor.fetchone()[0]).rpartition("@")
    user = f"{_quoted(name)}@{_quoted(host)}"
    return [f"GRANT {', '.join(lacks)} ON {quote_mysql(place.schema)}.* TO {user}"]


def _quoted(text: str) -> str:
    return "`" + text.replace("`", "``") + "`"


def held_rights(grants: Iterable[str], database: str) -> frozenset[str] | None:
    """Return the privileges that apply to all tables of a database, from the lines of ``SHOW GRANTS``.

    Returns None if no line can be parsed. The database name in a line may be a LIKE pattern.
    """
    lines = [*_granted(grants)]
    if not lines:
        return None
    return frozenset().union(*(rights for pattern, rights in lines if _fits(pattern, database)))


def _granted(grants: Iterable[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for line in grants:
        match = _GRANT.match(line)
        if match:
            rights = frozenset(right.strip().upper() for right in match["rights"].split(","))
            yield match["database"], rights


def _fits(pattern: str, database: str) -> bool:
    if pattern == "*":
        return True
    text = pattern[1:-1].replace("``", "`") if pattern.startswith("`") else pattern
    parts = re.split(r"(\\.|%|_)", text)
    wild = {"%": ".*", "_": "."}
    made = "".join(wild.get(part) or re.escape(part[1:] if part.startswith("\\") else part) for part in parts)
    return re.fullmatch(made, database, re.DOTALL) is not None
