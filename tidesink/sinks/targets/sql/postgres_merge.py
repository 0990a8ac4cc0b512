"""Merges a batch in Postgres. Also: checks of existing tables, and Postgres's errors by SQLSTATE."""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from tidesink.errors import (
    AccountingError,
    CommitUnknownError,
    SchemaRefusedError,
    TargetError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import fold_name
from tidesink.sinks.targets.sharing import quote_postgres
from tidesink.sinks.targets.sql.columns import OUR_PREFIX, POSTGRES_LIMITS
from tidesink.sinks.targets.sql.dialect import Counts, Merge, MergeColumn
from tidesink.sinks.targets.sql.faults import Fault, Meaning, explained
from tidesink.sinks.targets.sql.location import Place
from tidesink.sinks.targets.sql.merge import check_left_alone

# Number of rows from which a nested loop over the index is slower than reading the whole table. With outdated
# statistics, a nested loop may even scan the whole table for each row.
_MANY_ROWS: Final = 20_000


def merged(cursor: Any, merge: Merge) -> Counts:
    """Merge a staged batch into its target table, and return the row counts.

    With ``sequence_by: kafka``, deletes are carried out before upserts. With ``sequence_by: source``, both
    are one upsert, because deletes are written as tombstones.

    Raises:
        AccountingError: the counts of changed rows do not match the batch.
    """
    prepare(cursor, merge)
    if merge.sequence:
        stale = _not_newer(cursor, merge)
        inserted, updated = _upserted(cursor, merge, stale=stale)
        return check_left_alone(merge, Counts(inserted, updated, stale=stale))
    deleted = _deleted(cursor, merge) if merge.deletes else 0
    inserted, updated = _upserted(cursor, merge) if merge.upserts else (0, 0)
    if inserted + updated != merge.upserts:
        raise AccountingError(
            f"Only {inserted + updated} of {merge.upserts} rows could be written, because a trigger of "
            f"{merge.place.shown} skips rows. Nothing was written. Drop the trigger at the target.",
            table=str(merge.place.source),
        )
    return Counts(inserted, updated, deleted)


def _upserted(cursor: Any, merge: Merge, *, stale: int = 0) -> tuple[int, int]:
    """Upsert the staged rows. Returns the numbers of inserted and updated rows.

    ``stale``: number of staged rows that the statement skips, because they are not newer than the stored row.
    """
    upsert = _upsert(merge)
    if not is_partitioned(cursor, merge):
        # xmax is 0 for an inserted row, but not for an updated row, whose old version this transaction
        # locked.
        cursor.execute(
            f"WITH merged AS ({upsert} RETURNING xmax = 0 AS is_new) "
            "SELECT count(*) FILTER (WHERE is_new), count(*) FILTER (WHERE NOT is_new) FROM merged"
        )
        inserted, updated = cursor.fetchone()
        return inserted, updated
    # Postgres does not return xmax for a partitioned table, so existing rows are counted before the upsert.
    cursor.execute(
        f"SELECT count(*) FROM {merge.stage} s JOIN {merge.target} t ON {merge.on} WHERE {merge.taken}"
    )
    updated = cursor.fetchone()[0] - stale
    cursor.execute(upsert)
    return cursor.rowcount - updated, updated


def prepare(cursor: Any, merge: Merge) -> None:
    """Change settings of the transaction for a merge.

    Deferrable unique constraints are checked at the commit, so that rows may swap values. For a large batch,
    nested loops are disabled.
    """
    cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    if merge.upserts + merge.deletes > _MANY_ROWS:
        cursor.execute("SET LOCAL enable_nestloop TO off")


def _deleted(cursor: Any, merge: Merge) -> int:
    where = f"{merge.on} AND {merge.rows(deletes=True)}"
    if merge.soft:
        sets = [
            f"{merge.mark} = true",
            *(f"{column.target} = s.{column.staged}" for column in merge.on_delete),
        ]
        cursor.execute(f"UPDATE {merge.target} AS t SET {', '.join(sets)} FROM {merge.stage} s WHERE {where}")
    else:
        cursor.execute(f"DELETE FROM {merge.target} AS t USING {merge.stage} s WHERE {where}")
    return int(cursor.rowcount)


def is_partitioned(cursor: Any, merge: Merge) -> bool:
    """Return True if the target table is partitioned. Postgres then does not report which rows are new."""
    cursor.execute("SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", (merge.target,))
    return bool(cursor.fetchone()[0] != "r")


def _upsert(merge: Merge) -> str:
    """Return the INSERT … ON CONFLICT statement of a merge.

    It has no join, so outdated statistics cannot cause a bad plan. Inserting in the order of the key takes a
    third less server time than inserting in the order of arrival.
    """
    values = {column.target: f"s.{column.staged}" for column in merge.columns} | merge.own
    sets = {column.target: _written(merge, column) for column in merge.values}
    sets |= {name: f"CASE WHEN EXCLUDED.{merge.mark} THEN NULL ELSE t.{name} END" for name in merge.beside}
    sets |= {name: f"EXCLUDED.{name}" for name in merge.own}
    first, sequence = merge.keys[0].target, merge.sequence
    keys = ", ".join(column.target for column in merge.keys)
    newer = f" WHERE t.{sequence} IS NULL OR EXCLUDED.{sequence} > t.{sequence}" if sequence else ""
    return (
        f"INSERT INTO {merge.target} AS t ({', '.join(values)}) OVERRIDING SYSTEM VALUE "
        f"SELECT {', '.join(values.values())} FROM {merge.stage} s "
        f"WHERE {merge.taken} ORDER BY {', '.join(f's.{c.staged}' for c in merge.keys)} "
        f"ON CONFLICT ({keys}) DO UPDATE SET "
        + ", ".join(f"{name} = {value}" for name, value in (sets or {first: f"EXCLUDED.{first}"}).items())
        + newer
    )


def _not_newer(cursor: Any, merge: Merge) -> int:
    """Count the staged rows that are not newer than the stored row, with one index lookup for each row."""
    cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {merge.target})")
    if not cursor.fetchone()[0]:
        return 0
    # With outdated statistics of a table that has grown, every lookup would scan the whole table.
    cursor.execute("SET LOCAL enable_seqscan TO off")
    cursor.execute(
        f"SELECT count(*) FROM {merge.stage} s WHERE {merge.counted} "
        f"AND s.t_seq <= (SELECT t.{merge.sequence} FROM {merge.target} t WHERE {merge.on})"
    )
    (count,) = cursor.fetchone()
    cursor.execute("SET LOCAL enable_seqscan TO DEFAULT")
    return int(count)


def _written(merge: Merge, column: MergeColumn) -> str:
    """Return the SQL expression of a column's new value. A soft delete changes only the columns of
    ``on_delete``.
    """
    stays = merge.sequence and merge.soft and column not in merge.on_delete
    value = f"EXCLUDED.{column.target}"
    return f"CASE WHEN EXCLUDED.{merge.mark} THEN t.{column.target} ELSE {value} END" if stays else value


# For each column: name, type, generated, GENERATED ALWAYS AS IDENTITY, required, and whether it has a
# default.
_MADE: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated <> '', a.attidentity = 'a',
a.attnotnull OR t.typnotnull, a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KIND: Final = """
SELECT c.relkind, c.relpersistence, row_security_active(c.oid),
(SELECT min(i.inhrelid::regclass::text) FROM pg_inherits i WHERE i.inhparent = c.oid AND c.relkind = 'r')
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
_UNIQUE_INDEXES: Final = """
SELECT i.indimmediate, o.conname, array_agg(a.attname::text)
FROM pg_index i JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, at) ON k.at <= i.indnkeyatts
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
LEFT JOIN pg_constraint o ON o.conindid = i.indexrelid AND o.contype IN ('p', 'u')
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
GROUP BY i.indexrelid, i.indimmediate, o.conname
"""


def check_kept(cursor: Any, place: Place, columns: Collection[str], keys: Collection[str]) -> None:
    """Check that a table, possibly created by the user, stores every row as it is written.

    Raises:
        SchemaRefusedError: the table would change, hide or lose rows. The message has the statement that
            fixes it.
    """
    _check_table(cursor, place)
    cursor.execute(_MADE, (place.location,))
    for name, column_type, generated, always, required, filled in cursor.fetchall():
        quoted, is_ours = quote_postgres(name), name.startswith(OUR_PREFIX)
        written = fold_name(name) in columns
        if written and generated:
            why, way = "is generated by the server, which accepts no value for it", "DROP EXPRESSION"
        elif written and always and (fold_name(name) not in keys or columns == keys):
            why = "is GENERATED ALWAYS AS IDENTITY, so its value cannot be updated in existing rows"
            way = "SET GENERATED BY DEFAULT"
        elif required and not (written or filled or generated or is_ours):
            why = f"({column_type}) is NOT NULL, has no default, and is not a column of the source"
            way = "DROP NOT NULL"
        else:
            continue
        raise SchemaRefusedError(
            f"The column {name} of {place.shown} {why}. Change it, and start again: "
            f"ALTER TABLE {place.location} ALTER COLUMN {quoted} {way}",
            table=str(place.source),
            column=name,
        )
    _check_arbiter(cursor, place, keys)


def _check_table(cursor: Any, place: Place) -> None:
    """Check that a table survives a crash, shows tidesink's user all rows, and has no child table.

    Raises:
        SchemaRefusedError: the table is UNLOGGED, has row level security, or has a child table.
    """
    cursor.execute(_KIND, (place.location,))
    _, persistence, secured, child = cursor.fetchone()
    alter = f"ALTER TABLE {place.location}"
    if persistence == "u":
        why = "is UNLOGGED: a crash of the server empties it, but the progress stays in the ledger"
        way = f"{alter} SET LOGGED"
    elif secured:
        why = "has row level security, which hides rows from tidesink's user, so a merge cannot find them"
        way = f"{alter} DISABLE ROW LEVEL SECURITY"
    elif child is not None:
        why = f"has the child table {child}, whose rows belong to it but are not checked by its unique key"
        way = f"ALTER TABLE {child} NO INHERIT {place.location}"
    else:
        return
    raise SchemaRefusedError(
        f"{place.shown} {why}. Change it, and start again: {way}", table=str(place.source)
    )


def _check_arbiter(cursor: Any, place: Place, keys: Collection[str]) -> None:
    """Check the unique constraint on the key, which ON CONFLICT needs.

    Raises:
        SchemaRefusedError: all unique constraints on the key are DEFERRABLE, which ON CONFLICT cannot use.
    """
    cursor.execute(_UNIQUE_INDEXES, (place.location,))
    indexes = [
        (immediate, name)
        for immediate, name, names in cursor.fetchall()
        if None not in names and {fold_name(column) for column in names} == set(keys)
    ]
    if not indexes or any(immediate for immediate, _ in indexes):
        return  # if there is no such index, the merge reports it
    constraint = indexes[0][1]
    cursor.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = to_regclass(%s) AND conname = %s",
        (place.location, constraint),
    )
    definition = cursor.fetchone()[0].partition(" DEFERRABLE")[0]
    raise SchemaRefusedError(
        f"The constraint {constraint} on the key of {place.shown} is DEFERRABLE, but the merge needs a "
        "constraint that is checked immediately. Change it, and start again: "
        f"ALTER TABLE {place.location} DROP CONSTRAINT {quote_postgres(constraint)}, ADD {definition}",
        table=str(place.source),
    )


# SQLSTATEs, or beginnings of them, for a lost connection, or a server that is shutting down or starting up.
_CUT: Final = ("", "08", "57P01", "57P02", "57P03", "57P05", "25P03", "40003")
_LATER: Final = "Nothing of this batch was written, and it is tried again."

NO_WRITES: Final = "The server accepts no writes: it is a standby, or its transactions are read-only"
NO_WRITES_WAY: Final = (
    "Set target.url to the primary, or set default_transaction_read_only to off for the user."
)

# SQLSTATE or its class, tidesink's error class, the cause, and what to do next. The first match is used.
STATES: Final[tuple[tuple[str, type[TidesinkError], str, str], ...]] = (
    (
        "40001",
        TransientTargetError,
        "Another transaction changed the same rows",
        f"{_LATER} If it happens often, find the other program that writes to the table.",
    ),
    (
        "40P01",
        TransientTargetError,
        "The server ended this transaction to resolve a deadlock with another one",
        f"{_LATER} If it happens often, find the other program that writes to the table.",
    ),
    (
        "55P03",
        TransientTargetError,
        "Another session holds a lock on the rows or the table",
        f"{_LATER} If it lasts, find that session: SELECT pid, pg_blocking_pids(pid), query FROM "
        "pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0",
    ),
    (
        "53100",
        TransientTargetError,
        "The server's disk is full",
        f"{_LATER} Make room on the disk of the server.",
    ),
    (
        "53200",
        TransientTargetError,
        "The server is out of memory",
        f"{_LATER} Give the server more memory, or lower batch.max-records.",
    ),
    (
        "53300",
        TransientTargetError,
        "The server has no connections left",
        f"{_LATER} If it lasts, raise max_connections at the server, or close connections of other programs.",
    ),
    (
        "53",
        TransientTargetError,
        "The server has no disk space, memory or connections left",
        f"{_LATER} Look into the server's log.",
    ),
    (
        "57014",
        TransientTargetError,
        "The server cancelled a statement: an administrator stopped it, or statement_timeout is too short "
        "for a "
        "batch",
        f"{_LATER} If it is the timeout, run ALTER ROLE {{user}} SET statement_timeout = 0, or lower "
        "batch.max-records.",
    ),
    (
        "25006",
        TransientTargetError,
        NO_WRITES,
        NO_WRITES_WAY,
    ),
    (
        "23502",
        TargetError,
        "A row has no value for a column that is NOT NULL at the target",
        "Nothing was written. Make the column nullable at the target: ALTER TABLE … ALTER COLUMN … DROP NOT "
        "NULL",
    ),
    (
        "23503",
        TargetError,
        "A row violates a foreign key of the table at the target",
        "Nothing was written. Drop the foreign key at the target: tables are written independently, so a row "
        "can arrive before the row that it refers to.",
    ),
    (
        "23505",
        TargetError,
        "Two rows have the same value in a column with a unique index that is not the key",
        "Nothing was written. Drop that index at the target. If rows only swap such values, replace the "
        "index by a unique constraint that is DEFERRABLE.",
    ),
    (
        "23514",
        TargetError,
        "A value does not fit its column at the target, or a row violates a CHECK constraint of the table",
        "Nothing was written. Make the column wider at the target, or drop the CHECK constraint there.",
    ),
    (
        "23",
        TargetError,
        "A row violates a constraint of the table at the target",
        "Nothing was written. Drop the constraint at the target.",
    ),
    (
        "22",
        TargetError,
        "A value does not fit its column at the target",
        "Nothing was written. If the column's type was changed by hand, change it back.",
    ),
    (
        "28",
        TargetError,
        "The server refuses the user {user}",
        "Check target.user and target.password.",
    ),
    (
        "3D000",
        TargetError,
        "The database does not exist",
        "Check the database's name in target.url, or create it: CREATE DATABASE",
    ),
    (
        "42501",
        TargetError,
        "The user {user} lacks a privilege at the target",
        "Grant the privilege. `tidesink validate --connect` prints the GRANT statements.",
    ),
    (
        "42P10",
        SchemaRefusedError,
        "The table has no unique index on the key's columns",
        "Make the key's columns the table's primary key.",
    ),
    (
        "42P01",
        TransientTargetError,
        "A table at the target was dropped",
        f"{_LATER} If it lasts, find the program that drops tables at the target.",
    ),
    (
        "42701",
        TransientTargetError,
        "Another worker added the same column at the same time",
        _LATER,
    ),
    (
        "54",
        SchemaRefusedError,
        f"The table exceeds a limit of Postgres ({POSTGRES_LIMITS.columns:,} columns, 8 kB of a row "
        f"without its long values, {POSTGRES_LIMITS.key_bytes:,} bytes of a key)",
        "Exclude columns with except_column_list, or set keys in the config to shorter columns.",
    ),
    (
        "2BP01",
        TargetError,
        "Another view, an index or a constraint needs the column that is to be dropped",
        "Drop that object at the target, or set `drop` under `schema-changes` to `ignore` for the table.",
    ),
    (
        "0A",
        TargetError,
        "Postgres cannot make this change of the table. A view, a rule or a trigger of yours uses the "
        "column, or "
        "this version of Postgres lacks the feature",
        "Nothing was written. Drop the view, rule or trigger at the target, and create it again after the "
        "change.",
    ),
    *(
        (
            state,
            TargetError,
            "A trigger or a function at the target raises an error",
            "Nothing was written. The error's message may contain row values, so only the server's log "
            "has it. Correct the trigger or drop it.",
        )
        for state in ("P0", "38", "39")
    ),
    (
        "3F000",
        TransientTargetError,
        "A schema at the target no longer exists",
        f"{_LATER} If it lasts, find the program that drops schemas at the target.",
    ),
    (
        "55",
        TargetError,
        "The table's state does not allow the statement. For example, a publication contains the table, "
        "but its "
        "REPLICA IDENTITY is NOTHING",
        "Nothing was written. Look into the server's log for the reason.",
    ),
    (
        "42703",
        TargetError,
        "A column of the table at the target no longer exists",
        "Nothing was written. If another program changed the table, undo its change.",
    ),
    (
        "42",
        TargetError,
        "Postgres refuses the statement",
        "Nothing was written. If another program changed the table, undo its change.",
    ),
    (
        "58",
        TransientTargetError,
        "The server cannot read or write a file",
        f"{_LATER} Look into the server's log, and check its disks.",
    ),
    (
        "XX",
        TargetError,
        "The server reports an internal error, or damaged data",
        "Nothing was written. Look into the server's log.",
    ),
)
_UNKNOWN: Final = Meaning(
    TargetError,
    "Postgres refuses the statement",
    "Nothing was written. Look into the server's log for the reason.",
)
# Messages with these codes contain names of objects, settings and roles, but no row values.
_NAMES_ONLY: Final = (
    "25006", "28", "2BP01", "3D000", "3F000", "40P01", "42501", "42703", "42704", "42809", "42P01", "42P07",
    "42P10", "53", "55006", "55P03", "57", "58",
)  # fmt: skip
# Source files of the procedural languages. Their RAISE can use any code with any text, also with row values.
_RAISING: Final = ("pl_exec", "plpy_", "plperl", "pltcl")
_FIELDS: Final = ("table", "column", "constraint")
RIGHTS: Final = "42501"


def code_of(exc: BaseException) -> str | None:
    """Return the SQLSTATE of a psycopg exception; "" for a lost connection, None for other exceptions."""
    import psycopg

    if not isinstance(exc, psycopg.Error):
        return None
    if exc.sqlstate:
        return exc.sqlstate
    return "" if isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError) else "XX000"


def fault_of(exc: BaseException) -> Fault | None:
    """Convert a psycopg exception to a ``Fault``, which has no row values; None for other exceptions."""
    code = code_of(exc)
    if code is None:
        return None
    diag: Any = getattr(exc, "diag", None)
    is_own = diag is not None and not (diag.source_file or "").startswith(_RAISING)
    words = diag.message_primary or "" if is_own and code.startswith(_NAMES_ONLY) else ""
    return Fault(code, words, _named(diag))


def _named(diag: Any) -> str:
    """Return the names of table, column and constraint in an error's separate fields, such as ``column
    total``.
    """
    names = {name: getattr(diag, f"{name}_name", None) for name in _FIELDS}
    schema = getattr(diag, "schema_name", None)
    if schema and names["table"]:
        names["table"] = f"{schema}.{names['table']}"
    return ", ".join(f"{name} {value}" for name, value in names.items() if value)


def error_of(
    fault: Fault, *, table: str, committing: bool = False, user: str = "", grants: Sequence[str] = ()
) -> TidesinkError:
    """Return tidesink's error to raise for an error of Postgres (``Driver.error_of``)."""
    code = fault.code
    if code.startswith(_CUT[1:]) or code == "":
        if committing:
            return CommitUnknownError(
                "The connection was lost during the commit, so it is unknown whether the batch was "
                "committed. "
                "The worker reads the progress at the target to find out.",
                table=table,
            )
        reason = ": ".join(part for part in (code or "the connection was lost", fault.words) if part)
        return TransientTargetError(f"The Postgres server does not answer ({reason}). {_LATER}", table=table)
    rows = (Meaning(error, cause, remedy) for state, error, cause, remedy in STATES if code.startswith(state))
    meaning = next(rows, _UNKNOWN)
    return explained(meaning, fault, f"SQLSTATE {code}", table=table, user=user, grants=grants)
