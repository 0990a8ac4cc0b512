"""Merges a batch in MySQL and MariaDB. Also: checks of existing tables, the ledger's columns, error numbers.

If a table has a unique index in addition to its key, ``ON DUPLICATE KEY UPDATE`` changes the wrong row when a
new row has the same value in that index as another row (MySQL's manual warns of this). So it is used only if
the key is the table's only unique index. Reading the table first prevents other sessions from adding an index
until the commit. For any other table, existing rows are updated by their key, and then missing rows are
inserted.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by targets/sharing.py

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tidesink.config.models import LONGEST_SHARD
from tidesink.errors import (
    AccountingError,
    CommitUnknownError,
    SchemaRefusedError,
    TargetError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import fold_name
from tidesink.sinks.targets.sharing import quote_mysql
from tidesink.sinks.targets.sql.columns import MYSQL_LIMITS, OUR_PREFIX
from tidesink.sinks.targets.sql.dialect import Counts, Merge, MergeColumn
from tidesink.sinks.targets.sql.faults import Fault, Meaning, explained
from tidesink.sinks.targets.sql.location import Place
from tidesink.sinks.targets.sql.merge import check_left_alone, newer

_DUPLICATE: Final = "1062"
_COMPUTED: Final = ("VIRTUAL", "STORED GENERATED", "PERSISTENT")
_SWAPPED: Final = "`_tidesink_swapped`"


def merged(cursor: Any, merge: Merge, *, only_key: bool) -> Counts:
    """Merge a staged batch into its target table, and return the row counts.

    With ``sequence_by: kafka``, deletes are carried out before upserts. With ``sequence_by: source``, both
    are one upsert, because deletes are written as tombstones.

    ``only_key``: True if the key is the table's only unique index.

    Raises:
        AccountingError: the counts of changed rows do not match the batch.
    """
    ordered = merge.sequence is not None
    deleted = _deleted(cursor, merge) if merge.deletes and not ordered else 0
    rows = merge.upserts + merge.deletes * ordered
    if not rows:
        return Counts(deleted=deleted)
    existing, stale = _found(cursor, merge) if only_key or ordered else (0, 0)
    if not only_key:
        where = f"{merge.taken} AND {newer(merge, 't')}" if ordered else merge.taken
        updated = updated_rows(cursor, merge, where)
        cursor.execute(_insert(merge, missing=True))
        counts = Counts(int(cursor.rowcount), updated, deleted, stale)
    else:
        cursor.execute(_insert(merge, missing=False) + _on_duplicate(merge))
        # With sequence_by: source, an updated row always changes and counts 2; every other row counts 1.
        updated = int(cursor.rowcount) - rows if ordered else existing
        if not ordered:
            check_upserted(merge, int(cursor.rowcount), existing)
        counts = Counts(rows - existing, updated, deleted, stale)
    return check_left_alone(merge, counts) if ordered else counts


def check_upserted(merge: Merge, counted: int, updated: int) -> None:
    """Check the row count that INSERT … ON DUPLICATE KEY UPDATE returned against the number of staged rows.

    A new or unchanged row counts 1 (``CLIENT.FOUND_ROWS``). A changed row counts 2, or 3 in a
    system-versioned table of MariaDB.

    ``counted``: the count that the statement returned.
    ``updated``: number of rows that existed before the statement.

    Raises:
        AccountingError: the count is lower than the number of rows, or higher than ``updated`` rows explain.
    """
    if merge.upserts <= counted <= merge.upserts + 2 * updated:
        return
    raise AccountingError(
        f"The server reports {counted} affected rows for {merge.upserts} upserts, of which {updated} updated "
        "an existing row. These numbers do not match. Nothing was written. Report this with the log.",
        table=str(merge.place.source),
    )


def _deleted(cursor: Any, merge: Merge) -> int:
    rows = f"{merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on}"
    where = merge.rows(deletes=True)
    if merge.soft:
        sets = [
            f"t.{merge.mark} = 1",
            *(f"t.{column.target} = s.{column.staged}" for column in merge.on_delete),
        ]
        cursor.execute(f"UPDATE {rows} SET {', '.join(sets)} WHERE {where}")
    else:
        cursor.execute(f"DELETE t FROM {rows} WHERE {where}")
    return int(cursor.rowcount)


def _found(cursor: Any, merge: Merge) -> tuple[int, int]:
    """Count the staged rows whose key has a stored row, and those that are not newer than this stored row."""
    cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {merge.target})")
    if not cursor.fetchone()[0]:
        return 0, 0
    stale = f"COALESCE(SUM(s.t_seq <= t.{merge.sequence}), 0)" if merge.sequence else "0"
    cursor.execute(
        f"SELECT COUNT(*), {stale} FROM {merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on} "
        f"WHERE {merge.taken}"
    )
    existing, left = cursor.fetchone()
    return int(existing), int(left)


def _values(merge: Merge, alias: str) -> dict[str, str]:
    """Return the SQL expression of each column's new value when an existing row is updated, by column.

    The position comes last. ``alias``: the alias of the existing row.
    """
    values = {column.target: _written(merge, column, alias) for column in merge.values}
    values |= {name: f"IF(s.t_delete = 1, NULL, {alias}.{name})" for name in merge.beside}
    first = merge.keys[0]
    return {**values, **merge.own} or {first.target: f"s.{first.staged}"}


def _written(merge: Merge, column: MergeColumn, alias: str) -> str:
    """Return the SQL expression of a column's new value. A soft delete changes only the columns of
    ``on_delete``.
    """
    stays = merge.sequence and merge.soft and column not in merge.on_delete
    value = f"s.{column.staged}"
    return f"IF(s.t_delete = 1, {alias}.{column.target}, {value})" if stays else value


def _sets(merge: Merge, alias: str) -> str:
    return ", ".join(f"{alias}.{name} = {value}" for name, value in _values(merge, alias).items())


def _insert(merge: Merge, *, missing: bool) -> str:
    values = {column.target: f"s.{column.staged}" for column in merge.columns} | merge.own
    absent = f"LEFT JOIN {merge.target} t ON {merge.on} " if missing else ""
    where = f" AND t.{merge.keys[0].target} IS NULL" if missing else ""
    return (
        f"INSERT INTO {merge.target} ({', '.join(values)}) SELECT {', '.join(values.values())} "
        f"FROM {merge.stage} s {absent}WHERE {merge.taken}{where}"
    )


def _on_duplicate(merge: Merge) -> str:
    """Return the ON DUPLICATE KEY UPDATE clause of a merge's INSERT.

    Assignments run from left to right and see the values that earlier ones assigned. The position is compared
    in each of them, so it is assigned last.
    """
    keys, target = ", ".join(f"s.{column.staged}" for column in merge.keys), merge.target
    sets = _sets(merge, target)
    if merge.sequence:
        values = _values(merge, target).items()
        is_newer = newer(merge, target)
        sets = ", ".join(f"{target}.{n} = IF({is_newer}, {value}, {target}.{n})" for n, value in values)
    return f" ORDER BY {keys} ON DUPLICATE KEY UPDATE {sets}"


def updated_rows(cursor: Any, merge: Merge, where: str) -> int:
    """Update the existing rows of a batch, and return their number.

    If the update fails because rows swap values of a unique column, the rows are moved to a copy and back.

    ``where``: SQL condition on staged rows ``s`` and stored rows ``t``.
    """
    rows = f"{merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on}"
    try:
        cursor.execute(f"UPDATE {rows} SET {_sets(merge, 't')} WHERE {where}")
    except cursor.connection.Error as exc:
        if code_of(exc) != _DUPLICATE or _referenced(cursor, merge):
            raise
        # InnoDB has rolled back only the statement, so the transaction can continue.
        return _swapped(cursor, merge, where)
    return int(cursor.rowcount)


def _referenced(cursor: Any, merge: Merge) -> bool:
    """Return True if a foreign key of another table refers to this table.

    Deleting rows of this table could then change or delete rows of the other table.
    """
    cursor.execute(
        "SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS "
        "WHERE UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s",
        (merge.place.schema, merge.place.name),
    )
    return bool(cursor.fetchone()[0])


def is_computed(extra: str) -> bool:
    """Return True if the server computes a column; ``extra``: the column's field ``Extra`` of SHOW COLUMNS.

    MySQL 8's DEFAULT_GENERATED only means that the default is an expression; such a column stores values.
    """
    text = extra.upper()
    return any(words in text for words in _COMPUTED)


def _swapped(cursor: Any, merge: Merge, where: str) -> int:
    """Update rows that swap values of a unique column, and return their number.

    The server checks uniqueness row by row. So the rows are moved to a temporary table, changed there, and
    inserted again.
    """
    cursor.execute(f"SHOW COLUMNS FROM {merge.target}")
    stored = [merge.place.quote(name) for name, *_, extra in cursor.fetchall() if not is_computed(extra)]
    names = ", ".join(stored)
    keys = ", ".join(column.target for column in merge.keys)
    # Creating and dropping a temporary table does not commit. A server may require a primary key.
    cursor.execute(
        f"CREATE TEMPORARY TABLE {_SWAPPED} (PRIMARY KEY ({keys})) ENGINE=InnoDB AS SELECT "
        + ", ".join(f"t.{name}" for name in stored)
        + f" FROM {merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on} WHERE {where}"
    )
    on = " AND ".join(f"o.{column.target} = s.{column.staged}" for column in merge.keys)
    cursor.execute(
        f"UPDATE {merge.stage} s JOIN {_SWAPPED} o ON {on} SET {_sets(merge, 'o')} WHERE {merge.taken}"
    )
    cursor.execute(
        f"DELETE t FROM {merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on} WHERE {where}"
    )
    cursor.execute(f"INSERT INTO {merge.target} ({names}) SELECT {names} FROM {_SWAPPED}")
    rows = int(cursor.rowcount)
    cursor.execute(f"DROP TEMPORARY TABLE {_SWAPPED}")
    return rows


_EVERY_BYTE: Final = re.compile(r"utf8mb4_0900_bin|binary|\w+_nopad_bin")
# Types of fixed length lose trailing spaces or zero bytes.
_FIXED: Final = re.compile(r"(char|binary)(\([0-9]+\))")


def check_keys(cursor: Any, place: Place, keys: Collection[str], collation: str) -> None:
    """Check the types and collations of the key columns.

    ``keys``: the key columns' names, quoted and in lower case.
    ``collation``: the collation that the message recommends.

    Raises:
        SchemaRefusedError: a key column treats different values as equal.
    """
    cursor.execute(f"SHOW FULL COLUMNS FROM {place.location}")
    for name, column_type, compared, *_ in cursor.fetchall():
        if fold_name(quote_mysql(name)) not in keys:
            continue
        fixed = _FIXED.fullmatch(column_type)
        if fixed:
            why, right = f"is {column_type}, which drops the end of some values", f"var{column_type}"
        elif compared is not None and not _EVERY_BYTE.fullmatch(compared):
            why, right = f"has the collation {compared}", column_type
        else:
            continue
        if compared is not None:
            right += f" CHARACTER SET utf8mb4 COLLATE {collation}"
        raise SchemaRefusedError(
            f"The key column {name} of {place.shown} {why}: different keys (such as 'a' and 'A', or 'a' and "
            "'a ') would be the same row there, and overwrite each other. Change it, and start again: "
            f"ALTER TABLE {place.location} MODIFY {quote_mysql(name)} {right} NOT NULL",
            table=str(place.source),
            column=name,
        )


def only_unique(cursor: Any, place: Place, keys: Collection[str]) -> bool:
    """Return True if the key is the table's only unique index.

    Raises:
        SchemaRefusedError: the table has no unique index on the key.
    """
    cursor.execute(f"SHOW INDEX FROM {place.location}")
    unique: dict[str, set[str]] = {}
    for row in cursor.fetchall():
        if not row[1]:  # Non_unique
            unique.setdefault(row[2], set()).add(_indexed(row[4], row[7]))
    if set(keys) not in unique.values():
        raise SchemaRefusedError(
            f"{place.shown} has no unique index on the key's columns in full length. Make these columns its "
            "primary key.",
            table=str(place.source),
        )
    return all(columns == set(keys) for columns in unique.values())


def _indexed(column: str | None, length: int | None) -> str:
    """Return the column that a part of an index covers, quoted and in lower case.

    Returns "" if the part is an expression, or covers only the beginning of the column.
    """
    return fold_name(quote_mysql(column)) if column and length is None else ""


def check_kept(
    cursor: Any,
    place: Place,
    columns: Collection[str],
    keys: Collection[str],  # noqa: ARG001  (an AUTO_INCREMENT column accepts values)
) -> None:
    """Check that a table, possibly created by the user, stores every row as it is written.

    Among other things, the server must not set a TIMESTAMP column to the current time. It may do so whenever
    a row changes, and, if ``explicit_defaults_for_timestamp`` is off, instead of NULL.

    Raises:
        SchemaRefusedError: the table would change or lose values. The message has the statement that fixes
            it.
    """
    _check_engine(cursor, place)
    cursor.execute("SELECT @@explicit_defaults_for_timestamp")
    explicit = bool(cursor.fetchone()[0])
    cursor.execute(f"SHOW FULL COLUMNS FROM {place.location}")
    for name, column_type, _, null, key, default, extra, *_ in cursor.fetchall():
        _check_made(place, (name, column_type), null=null, default=default, extra=extra, columns=columns)
        fills = not explicit and column_type.startswith("timestamp") and null != "YES" and key != "PRI"
        if fold_name(name) in columns and (fills or "on update" in extra.lower()):
            right = (
                f"{column_type} NULL"
                if key != "PRI"
                else f"{column_type} NOT NULL{default_of_key(column_type)}"
            )
            raise SchemaRefusedError(
                f"The server writes the current time into the column {name} of {place.shown}, instead of the "
                "source's value, when a row is changed or has no value. Change it, and start again: "
                f"ALTER TABLE {place.location} MODIFY {quote_mysql(name)} {right}",
                table=str(place.source),
                column=name,
            )


def _check_engine(cursor: Any, place: Place) -> None:
    """Check that the table's storage engine has transactions, so that rows and progress commit together.

    Raises:
        SchemaRefusedError: the engine has no transactions.
    """
    cursor.execute(
        "SELECT t.ENGINE FROM information_schema.TABLES t JOIN information_schema.ENGINES e USING (ENGINE) "
        "WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s AND e.TRANSACTIONS = 'NO'",
        (place.schema, place.name),
    )
    row = cursor.fetchone()
    if row is not None:
        raise SchemaRefusedError(
            f"{place.shown} uses the engine {row[0]}, which has no transactions: a batch could be written "
            "partly, or twice. Change it, and start again: "
            f"ALTER TABLE {place.location} ENGINE=InnoDB",
            table=str(place.source),
        )


def _check_made(
    place: Place, column: tuple[str, str], *, null: str, default: Any, extra: str, columns: Collection[str]
) -> None:
    """Check one column of the table.

    ``column``: its name and type.
    ``null``, ``default``, ``extra``: the column's fields of SHOW COLUMNS.
    ``columns``: the source's columns, in lower case.

    Raises:
        SchemaRefusedError: the server computes the values of a source column, or a column that the source
            does not have is required.
    """
    name, column_type = column
    quoted, written = quote_mysql(name), fold_name(name) in columns
    if written and is_computed(extra):
        why = "is generated by the server, which accepts no value for it"
        # Neither server can turn a virtual column into a plain one.
        way = f"DROP COLUMN {quoted}, ADD COLUMN {quoted} {column_type} NULL"
    elif not written and null != "YES" and default is None and not (extra or name.startswith(OUR_PREFIX)):
        why = f"({column_type}) is NOT NULL, has no default, and is not a column of the source"
        way = f"MODIFY {quoted} {column_type} NULL"
    else:
        return
    raise SchemaRefusedError(
        f"The column {name} of {place.shown} {why}. Change it, and start again: "
        f"ALTER TABLE {place.location} {way}",
        table=str(place.source),
        column=name,
    )


def default_of_key(found: str) -> str:
    """Return the DEFAULT clause of a key column of the type ``found``; empty unless it is a TIMESTAMP.

    Without a default, the server would set the first NOT NULL TIMESTAMP column to the current time whenever
    its row changes, if ``explicit_defaults_for_timestamp`` is off, as in MariaDB before 10.10.
    """
    return " DEFAULT '1970-01-01 00:00:01'" if found.startswith("timestamp") else ""


_AFTER_THE_KEY: Final = MappingProxyType(
    {
        "source_table": "longtext NOT NULL",
        "pipeline": "longtext NOT NULL",
        "epoch": "bigint NOT NULL",
        "txn_version": "bigint NOT NULL",
        "progress": "longtext",
        "key_columns": "longtext NOT NULL",
        "result": "longtext",
        "commits": "bigint NOT NULL",
        "horizon": "bigint",
        "table_identity": "longtext",
        "updated_at": "timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP",
    }
)
_NAME_TYPE: Final = "varchar(64) NOT NULL"
# Columns and types of the ledger.
LEDGER_COLUMNS: Final[Mapping[str, str]] = MappingProxyType({"table_name": _NAME_TYPE, **_AFTER_THE_KEY})
# Columns and types of the ledger of shared tables.
SHARDS_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "table_name": _NAME_TYPE,
        "shard": f"varchar({LONGEST_SHARD}) NOT NULL",
        "known_columns": "longtext",
        **_AFTER_THE_KEY,
    }
)


def create_ledger(cursor: Any, location: str, columns: Mapping[str, str], collation: str) -> None:
    """Create a ledger table. ``location``: its quoted name. ``columns``: types by name."""
    spelt = ", ".join(f"{name} {column_type}" for name, column_type in columns.items())
    keys = ", ".join(name for name in ("table_name", "shard") if name in columns)
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {location} ({spelt}, PRIMARY KEY ({keys})) "
        f"ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
    )


# Error numbers for a lost connection (4031: idle too long), a failed one, or a server that is shutting down.
_CUT: Final = frozenset({"", "1053", "1152", "1158", "1159", "1160", "1161", "1927", "4031"}) | {
    str(number) for number in range(2000, 2062)
}
_LATER: Final = "Nothing of this batch was written, and it is tried again."
_NOTHING: Final = "Nothing was written."

# Error numbers of MySQL and MariaDB with their meaning: tidesink's error class, the cause, and what to do
# next.
NUMBERS: Final[tuple[tuple[tuple[int, ...], Meaning], ...]] = (
    (
        (1213, 1614),
        Meaning(
            TransientTargetError,
            "The server ended this transaction to resolve a deadlock with another one",
            f"{_LATER} If it happens often, find the other program that writes to the table.",
        ),
    ),
    (
        (1205, 3572, 3058),
        Meaning(
            TransientTargetError,
            "Another session holds a lock on the rows or the table",
            f"{_LATER} If it lasts, find that session: SHOW ENGINE INNODB STATUS, SHOW PROCESSLIST",
        ),
    ),
    (
        (1020,),
        Meaning(
            TransientTargetError,
            "Another transaction changed the same rows",
            f"{_LATER} If it happens often, find the other program that writes to the table.",
        ),
    ),
    (
        (1969, 3024, 1317),
        Meaning(
            TransientTargetError,
            "The server cancelled a statement: an administrator stopped it, or max_statement_time (MySQL: "
            "max_execution_time) is too short for a batch",
            f"{_LATER} If the time limit was reached, raise it for tidesink's user, or lower "
            "batch.max-records.",
        ),
    ),
    (
        (1021, 1114),
        Meaning(
            TransientTargetError,
            "The server's disk or tablespace is full",
            f"{_LATER} Make room on the disk of the server.",
        ),
    ),
    (
        (1037, 1038, 1041, 1206),
        Meaning(
            TransientTargetError,
            "The server is out of memory",
            f"{_LATER} Give the server more memory, or lower batch.max-records.",
        ),
    ),
    (
        (1040, 1203, 1226),
        Meaning(
            TransientTargetError,
            "The server has no connections left for the user",
            f"{_LATER} If it lasts, raise max_connections at the server, or the user's limit "
            "(max_user_connections).",
        ),
    ),
    (
        (1290, 1836, 1792),
        Meaning(
            TransientTargetError,
            "The server accepts no writes: it is a replica, or read-only",
            "Set target.url to the primary, or set read_only to OFF at the server.",
        ),
    ),
    (
        (1062, 1586, 1169),
        Meaning(
            TargetError,
            "Two rows have the same value in a column with a unique index that is not the key",
            f"{_NOTHING} Drop that index at the target, or correct the row at the source.",
        ),
    ),
    (
        (1048, 1263, 1364),
        Meaning(
            TargetError,
            "A row has no value for a column that is NOT NULL at the target",
            f"{_NOTHING} Make the column nullable at the target: ALTER TABLE … MODIFY … NULL",
        ),
    ),
    (
        (1264, 1265, 1292, 1366, 1367, 1406, 1411, 1441, 1690, 3140, 1261, 1262),
        Meaning(
            TargetError,
            "A value does not fit its column at the target",
            f"{_NOTHING} If the column's type was changed by hand, change it back. If a key's text is longer "
            "than its varchar, make the column longer with ALTER TABLE … MODIFY; target.key-length sets the "
            "length in new tables.",
        ),
    ),
    (
        (1451, 1452, 1216, 1217),
        Meaning(
            TargetError,
            "A row violates a foreign key of the table at the target",
            f"{_NOTHING} Drop the foreign key at the target: tables are written independently, so a row can "
            "arrive before the row that it refers to.",
        ),
    ),
    (
        (4025, 3819),
        Meaning(
            TargetError,
            "A row violates a CHECK constraint of the table at the target",
            f"{_NOTHING} Drop the CHECK constraint at the target.",
        ),
    ),
    (
        (1045, 1698, 3118),
        Meaning(TargetError, "The server refuses the user {user}", "Check target.user and target.password."),
    ),
    (
        (1044, 1142, 1143, 1227, 1370, 1410),
        Meaning(
            TargetError,
            "The user {user} lacks a privilege at the target",
            "Grant the privilege. `tidesink validate --connect` prints the GRANT statements.",
        ),
    ),
    (
        (1148, 3948, 4166, 3950),
        Meaning(
            TargetError,
            "The server does not allow LOAD DATA LOCAL",
            "Set the server's variable local_infile to 1.",
        ),
    ),
    (
        (1049,),
        Meaning(
            TargetError,
            "The database does not exist",
            "Check the database's name in target.url, or create it: CREATE DATABASE",
        ),
    ),
    (
        (1070, 1071, 1117, 1118, 1074),
        Meaning(
            SchemaRefusedError,
            f"The table exceeds a limit of MySQL ({MYSQL_LIMITS.columns:,} columns, about "
            f"{MYSQL_LIMITS.long_values} of them long texts or bytes, 65,535 bytes of a row without these, "
            f"{MYSQL_LIMITS.key_bytes:,} bytes of a key)",
            "Exclude columns with except_column_list, or set keys in the config to shorter columns.",
        ),
    ),
    (
        (1005,),
        Meaning(
            SchemaRefusedError,
            "The server's storage engine cannot create the table. In MariaDB, the table may have more than "
            f"{MYSQL_LIMITS.columns:,} columns, or another table's foreign key refers to a table of this "
            "name "
            "with other columns",
            "Other causes are a full disk and a leftover .ibd file of a dropped table. SHOW ENGINE INNODB "
            "STATUS and the server's log have the details.",
        ),
    ),
    (
        (1059, 1102, 1103, 1166, 1300),
        Meaning(
            SchemaRefusedError,
            "MySQL does not allow this name",
            "Change target.table, or give the table another name with a route.",
        ),
    ),
    (
        (1146, 1051),
        Meaning(
            TransientTargetError,
            "A table at the target was dropped",
            f"{_LATER} If it lasts, find the program that drops tables at the target.",
        ),
    ),
    (
        (1060,),
        Meaning(TransientTargetError, "Another worker added the same column at the same time", _LATER),
    ),
    # MariaDB also returns the storage engine's own numbers (126, 127, 144, 145).
    (
        (126, 127, 144, 145, 1034, 1194, 1195),
        Meaning(
            TransientTargetError,
            "A table is marked as crashed, which happens to Aria and MyISAM tables when the server is killed",
            "If it is a staging table, the next try creates it again. For any other table, run REPAIR TABLE.",
        ),
    ),
    (
        (3161,),
        Meaning(
            TargetError,
            "The server does not allow a storage engine (disabled_storage_engines)",
            f"{_NOTHING} tidesink needs InnoDB, and in MariaDB also Aria for staging tables. Remove these "
            "engines from the variable's list.",
        ),
    ),
    (
        (3750, 1173),
        Meaning(
            TargetError,
            "The server does not allow a table without a primary key (sql_require_primary_key)",
            f"{_NOTHING} Give the table a primary key, or set the variable to OFF for tidesink's user.",
        ),
    ),
    (
        (1785, 1786, 1787),
        Meaning(
            TargetError,
            "The server does not allow a statement that GTID replication cannot log "
            "(enforce_gtid_consistency)",
            f"{_NOTHING} Convert the table to InnoDB, and drop triggers that write to tables of other "
            "engines. If rows swap values of a unique column, use MySQL 8.0.13 or newer with binlog_format "
            "ROW, or drop that column's unique index.",
        ),
    ),
    (
        (1153, 1301),
        Meaning(
            TargetError,
            "A row is longer than the server accepts in one statement",
            f"{_NOTHING} Raise the server's variable max_allowed_packet above twice the longest message of "
            "the topic.",
        ),
    ),
    (
        (1412, 1615),
        Meaning(
            TransientTargetError,
            "Another session changed the table's columns while the batch was merged",
            f"{_LATER} If it lasts, find the program that alters tables at the target.",
        ),
    ),
    (
        (1047,),
        Meaning(
            TransientTargetError,
            "The Galera node accepts no statements: it is still joining its cluster, or the cluster has "
            "lost its quorum",
            f"{_LATER} If it lasts, look at the node's wsrep_ready and wsrep_cluster_status.",
        ),
    ),
    (
        (1644, 1643),
        Meaning(
            TargetError,
            "A trigger or a function at the target raises an error",
            f"{_NOTHING} The error's message is not shown, because it may contain row values. Correct the "
            "trigger or drop it.",
        ),
    ),
    (
        (1054,),
        Meaning(
            TargetError,
            "A column of the table at the target no longer exists",
            f"{_NOTHING} If another program changed the table, undo its change.",
        ),
    ),
)
_MEANINGS: Final = {str(number): meaning for numbers, meaning in NUMBERS for number in numbers}
_UNKNOWN: Final = Meaning(
    TargetError,
    "The server refuses the statement",
    f"{_NOTHING} Look up the number in MariaDB's or MySQL's list of error codes, and see the server's log.",
)
# Messages with these codes contain names of objects, settings and users, but no row values.
_NAMES_ONLY: Final = frozenset(
    map(
        str,
        (
            1005, 1020, 1021, 1040, 1044, 1045, 1048, 1049, 1051, 1053, 1054, 1060, 1114, 1142, 1143, 1146,
            1203, 1205, 1213, 1216, 1217, 1226, 1227, 1263, 1264, 1265, 1290, 1317, 1364, 1370, 1406, 1410,
            1451, 1452, 1698, 1792, 1836, 1969, 3024, 3118, 3819, 4025,
        ),
    )
)  # fmt: skip
RIGHTS: Final = frozenset({"1044", "1142", "1143", "1227", "1370", "1410"})


class LoadRefusedError(Exception):
    """LOAD DATA LOCAL changed a value. ``number``: the number of the server's warning."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def code_of(exc: BaseException) -> str | None:
    """Return the error number of a PyMySQL exception; "" for a lost connection, None for other exceptions."""
    import pymysql

    if isinstance(exc, LoadRefusedError):
        return str(exc.number)
    if isinstance(exc, OSError):
        return ""
    if not isinstance(exc, pymysql.err.MySQLError):
        return None
    number = exc.args[0] if exc.args and isinstance(exc.args[0], int) else 0
    return str(number) if number else ""


def fault_of(exc: BaseException) -> Fault | None:
    """Convert a PyMySQL exception to a ``Fault``, which has no row values; None for other exceptions."""
    code = code_of(exc)
    if code is None:
        return None
    shows = code in _NAMES_ONLY and len(exc.args) > 1
    return Fault(code, str(exc.args[1]) if shows else "")


def error_of(
    fault: Fault, *, table: str, committing: bool = False, user: str = "", grants: Sequence[str] = ()
) -> TidesinkError:
    """Return tidesink's error to raise for an error of MySQL or MariaDB (``Driver.error_of``)."""
    code = fault.code
    if code in _CUT:
        if committing:
            return CommitUnknownError(
                "The connection was lost during the commit, so it is unknown whether the batch was "
                "committed. "
                "The worker reads the progress at the target to find out.",
                table=table,
            )
        reason = ": ".join(part for part in (code or "the connection was lost", fault.words) if part)
        return TransientTargetError(f"The server does not answer ({reason}). {_LATER}", table=table)
    meaning = _MEANINGS.get(code, _UNKNOWN)
    return explained(meaning, fault, f"error {code}", table=table, user=user, grants=grants)
