"""How a batch is merged in MySQL and MariaDB: keys, statements, ledger, errors by number.

``ON DUPLICATE KEY UPDATE`` changes *another* row where a row's value in some other unique column is that
row's (MySQL's manual warns of it), so it is used only where the key is the one unique index there is: the
look at the table holds off whoever would add one until the commit. Everywhere else rows that are there are
updated by their key, and those missing inserted.
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
    """Deletes, then upserts; in the source's order both at once, held to a count made before.

    ``only_key``: the key is the table's one unique index.
    """
    ordered = merge.sequence is not None
    deleted = _deleted(cursor, merge) if merge.deletes and not ordered else 0
    rows = merge.upserts + merge.deletes * ordered
    if not rows:
        return Counts(deleted=deleted)
    found, stale = _found(cursor, merge) if only_key or ordered else (0, 0)
    if not only_key:
        where = f"{merge.taken} AND {newer(merge, 't')}" if ordered else merge.taken
        updated = updated_rows(cursor, merge, where)
        cursor.execute(_insert(merge, missing=True))
        counts = Counts(int(cursor.rowcount), updated, deleted, stale)
    else:
        cursor.execute(_insert(merge, missing=False) + _on_duplicate(merge))
        # In the source's order it counts 2 for a row that is newer, which always changes, 1 for any other.
        updated = int(cursor.rowcount) - rows if ordered else found
        if not ordered:
            check_upserted(merge, int(cursor.rowcount), found)
        counts = Counts(rows - found, updated, deleted, stale)
    return check_left_alone(merge, counts) if ordered else counts


def check_upserted(merge: Merge, counted: int, updated: int) -> None:
    """Hold what INSERT … ON DUPLICATE KEY UPDATE counts to the rows it was given.

    A row that did not change counts 1, as a new one does (``CLIENT.FOUND_ROWS``); one that changed 2, and 3
    in a table of MariaDB's that keeps its versions.

    Raises:
        AccountingError: fewer than there are rows, or more than ``updated`` of them can count.
    """
    if merge.upserts <= counted <= merge.upserts + 2 * updated:
        return
    raise AccountingError(
        f"the merge counts {counted} for {merge.upserts} upserts, of which {updated} rows were there before",
        table=str(merge.place.source),
    )


def _deleted(cursor: Any, merge: Merge) -> int:
    rows = f"{merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on}"
    where = merge.rows(deletes=True)
    if merge.soft:
        sets = [f"t.{merge.mark} = 1", *(f"t.{one.target} = s.{one.staged}" for one in merge.on_delete)]
        cursor.execute(f"UPDATE {rows} SET {', '.join(sets)} WHERE {where}")
    else:
        cursor.execute(f"DELETE t FROM {rows} WHERE {where}")
    return int(cursor.rowcount)


def _found(cursor: Any, merge: Merge) -> tuple[int, int]:
    """How many of the rows are there already, and how many are not newer than what is there."""
    cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {merge.target})")
    if not cursor.fetchone()[0]:
        return 0, 0
    stale = f"COALESCE(SUM(s.t_seq <= t.{merge.sequence}), 0)" if merge.sequence else "0"
    cursor.execute(
        f"SELECT COUNT(*), {stale} FROM {merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on} "
        f"WHERE {merge.taken}"
    )
    found, left = cursor.fetchone()
    return int(found), int(left)


def _values(merge: Merge, alias: str) -> dict[str, str]:
    """What each column of a row that is there becomes, the row by its alias; the position is the last."""
    values = {column.target: _written(merge, column, alias) for column in merge.values}
    values |= {name: f"IF(s.t_delete = 1, NULL, {alias}.{name})" for name in merge.beside}
    first = merge.keys[0]
    return {**values, **merge.own} or {first.target: f"s.{first.staged}"}


def _written(merge: Merge, column: MergeColumn, alias: str) -> str:
    """A delete that is soft leaves the values but those it tells, another leaves none."""
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
    """Assignments are made from left to right, and those after see them: the position comes last."""
    keys, target = ", ".join(f"s.{column.staged}" for column in merge.keys), merge.target
    sets = _sets(merge, target)
    if merge.sequence:
        values = _values(merge, target).items()
        is_newer = newer(merge, target)
        sets = ", ".join(f"{target}.{n} = IF({is_newer}, {value}, {target}.{n})" for n, value in values)
    return f" ORDER BY {keys} ON DUPLICATE KEY UPDATE {sets}"


def updated_rows(cursor: Any, merge: Merge, where: str) -> int:
    """Update the rows that are there; where they swap values of a unique column, by way of a copy.

    ``where`` says which of the staged rows ``s`` with the stored ones ``t``.
    """
    rows = f"{merge.stage} s STRAIGHT_JOIN {merge.target} t ON {merge.on}"
    try:
        cursor.execute(f"UPDATE {rows} SET {_sets(merge, 't')} WHERE {where}")
    except cursor.connection.Error as exc:
        if code_of(exc) != _DUPLICATE or _referenced(cursor, merge):
            raise
        # InnoDB has undone the statement alone: the transaction goes on.
        return _swapped(cursor, merge, where)
    return int(cursor.rowcount)


def _referenced(cursor: Any, merge: Merge) -> bool:
    """Whether rows of other tables hang on this table's, which would go with a deleted row."""
    cursor.execute(
        "SELECT COUNT(*) FROM information_schema.REFERENTIAL_CONSTRAINTS "
        "WHERE UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME = %s",
        (merge.place.schema, merge.place.name),
    )
    return bool(cursor.fetchone()[0])


def is_computed(extra: str) -> bool:
    """Whether a column takes no value, by what SHOW COLUMNS says last of it.

    MySQL 8's DEFAULT_GENERATED is a default that is an expression: such a column has values of its own.
    """
    said = extra.upper()
    return any(words in said for words in _COMPUTED)


def _swapped(cursor: Any, merge: Merge, where: str) -> int:
    """Uniqueness is looked at row by row: take the rows out as they are, change them, and put them back."""
    cursor.execute(f"SHOW COLUMNS FROM {merge.target}")
    stored = [merge.place.quote(name) for name, *_, extra in cursor.fetchall() if not is_computed(extra)]
    names = ", ".join(stored)
    keys = ", ".join(column.target for column in merge.keys)
    # A temporary table is made and dropped without a commit. Servers may ask for a primary key of it.
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
# Fixed lengths lose what is at the end of a value: spaces, or bytes of zero.
_FIXED: Final = re.compile(r"(char|binary)(\([0-9]+\))")


def check_keys(cursor: Any, place: Place, keys: Collection[str], collation: str) -> None:
    """Look at the key's columns (quoted, in lower case); ``collation`` is the one to name as right.

    Raises:
        SchemaRefusedError: a column takes different values for one.
    """
    cursor.execute(f"SHOW FULL COLUMNS FROM {place.location}")
    for name, found, compared, *_ in cursor.fetchall():
        if fold_name(quote_mysql(name)) not in keys:
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
    return fold_name(quote_mysql(column)) if column and length is None else ""


def check_kept(
    cursor: Any,
    place: Place,
    columns: Collection[str],
    keys: Collection[str],  # noqa: ARG001  (an AUTO_INCREMENT keeps what it is given)
) -> None:
    """Look at what a table that a person made does with its rows (``Dialect.check_kept``).

    A TIMESTAMP may be given the time by the server: at each change of its row, and, where
    ``explicit_defaults_for_timestamp`` is off, in place of NULL.

    Raises:
        SchemaRefusedError: rows would not be kept as they are written.
    """
    _check_engine(cursor, place)
    cursor.execute("SELECT @@explicit_defaults_for_timestamp")
    explicit = bool(cursor.fetchone()[0])
    cursor.execute(f"SHOW FULL COLUMNS FROM {place.location}")
    for name, found, _, null, key, default, extra, *_ in cursor.fetchall():
        _check_made(place, (name, found), null=null, default=default, extra=extra, columns=columns)
        fills = not explicit and found.startswith("timestamp") and null != "YES" and key != "PRI"
        if fold_name(name) in columns and (fills or "on update" in extra.lower()):
            right = f"{found} NULL" if key != "PRI" else f"{found} NOT NULL{default_of_key(found)}"
            raise SchemaRefusedError(
                f"the server puts the time into the column {name} of {place.shown} by itself, in place of "
                "the source's value, when a row is changed or has none. Change it, and start again: "
                f"ALTER TABLE {place.location} MODIFY {quote_mysql(name)} {right}",
                table=str(place.source),
                column=name,
            )


def _check_engine(cursor: Any, place: Place) -> None:
    """Refuse a table whose rows do not come with their progress: its engine has no transactions."""
    cursor.execute(
        "SELECT t.ENGINE FROM information_schema.TABLES t JOIN information_schema.ENGINES e USING (ENGINE) "
        "WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s AND e.TRANSACTIONS = 'NO'",
        (place.schema, place.name),
    )
    found = cursor.fetchone()
    if found is not None:
        raise SchemaRefusedError(
            f"{place.shown} is of the engine {found[0]}, which has no transactions: a batch could be written "
            "in part, or twice. Change it, and start again: "
            f"ALTER TABLE {place.location} ENGINE=InnoDB",
            table=str(place.source),
        )


def _check_made(
    place: Place, column: tuple[str, str], *, null: str, default: Any, extra: str, columns: Collection[str]
) -> None:
    """Refuse a column of the source's that the server computes, and another that must have a value."""
    name, found = column
    quoted, written = quote_mysql(name), fold_name(name) in columns
    if written and is_computed(extra):
        why = "is generated by the server, which takes no value for it"
        # Neither server makes a plain column of a virtual one.
        way = f"DROP COLUMN {quoted}, ADD COLUMN {quoted} {found} NULL"
    elif not written and null != "YES" and default is None and not (extra or name.startswith(OUR_PREFIX)):
        why = f"({found}) takes no NULL, has no default, and is not a column of the source"
        way = f"MODIFY {quoted} {found} NULL"
    else:
        return
    raise SchemaRefusedError(
        f"The column {name} of {place.shown} {why}. Change it, and start again: "
        f"ALTER TABLE {place.location} {way}",
        table=str(place.source),
        column=name,
    )


def default_of_key(found: str) -> str:
    """What a key's column says besides, so that a server does not change a TIMESTAMP with its row.

    Where ``explicit_defaults_for_timestamp`` is off, as it was in MariaDB before 10.10, it does so to the
    first one that takes no NULL and has no default.
    """
    return " DEFAULT '1970-01-01 00:00:01'" if found.startswith("timestamp") else ""


_ADDED_BY_ANOTHER: Final = "1060"
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
# The columns of the ledger, with their types.
LEDGER_COLUMNS: Final[Mapping[str, str]] = MappingProxyType({"table_name": _NAME_TYPE, **_AFTER_THE_KEY})
# The columns of the ledger of tables that several source tables share.
SHARDS_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "table_name": _NAME_TYPE,
        "shard": f"varchar({LONGEST_SHARD}) NOT NULL",
        "known_columns": "longtext",
        **_AFTER_THE_KEY,
    }
)


def prepare_ledger(
    cursor: Any, location: str, present: Mapping[str, str], columns: Mapping[str, str], collation: str
) -> None:
    """Make a ledger, or give one of an earlier version the columns that there were not: they take NULL."""
    if not present:
        spelt = ", ".join(f"{name} {found}" for name, found in columns.items())
        keys = ", ".join(name for name in ("table_name", "shard") if name in columns)
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {location} ({spelt}, PRIMARY KEY ({keys})) "
            f"ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
        )
        return
    for name, found in columns.items():
        if name not in present and "NOT NULL" not in found:
            _add(cursor, f"ALTER TABLE {location} ADD COLUMN {name} {found}")


def _add(cursor: Any, statement: str) -> None:
    """MySQL's ADD COLUMN has no IF NOT EXISTS."""
    try:
        cursor.execute(statement)
    except cursor.connection.Error as exc:
        if code_of(exc) != _ADDED_BY_ANOTHER:
            raise


# The connection was cut (4031: for its silence) or could not be made, or the server is going down.
_CUT: Final = frozenset({"", "1053", "1152", "1158", "1159", "1160", "1161", "1927", "4031"}) | {
    str(number) for number in range(2000, 2062)
}
_LATER: Final = "Nothing of this batch was written, and it is tried again."
_NOTHING: Final = "Nothing was written."

# Numbers of MySQL's and MariaDB's errors, our class, the cause, and what to do next.
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
            "The server cancelled a statement: a person did, or max_statement_time (MySQL: "
            "max_execution_time) is too short for a batch",
            f"{_LATER} If it is the time limit, raise it for the user, or lower batch.max-records.",
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
            f"{_LATER} If it lasts, raise max_connections or the user's limit.",
        ),
    ),
    (
        (1290, 1836, 1792),
        Meaning(
            TransientTargetError,
            "The server takes no writes: it is a replica, or read-only",
            "Let target.url name the primary, or set read_only to OFF.",
        ),
    ),
    (
        (1062, 1586, 1169),
        Meaning(
            TargetError,
            "A row has a value that another row has, in a column with a unique index that is not the key",
            f"{_NOTHING} Drop that index at the target, or correct the row.",
        ),
    ),
    (
        (1048, 1263, 1364),
        Meaning(
            TargetError,
            "A row has no value for a column that takes no NULL at the target",
            f"{_NOTHING} At the target: ALTER TABLE … MODIFY … NULL",
        ),
    ),
    (
        (1264, 1265, 1292, 1366, 1367, 1406, 1411, 1441, 1690, 3140, 1261, 1262),
        Meaning(
            TargetError,
            "A value does not fit its column at the target",
            f"{_NOTHING} If the column's type was changed by hand, change it back. A key's text longer than "
            "its varchar needs ALTER TABLE … MODIFY; target.key-length is the length in new tables.",
        ),
    ),
    (
        (1451, 1452, 1216, 1217),
        Meaning(
            TargetError,
            "A row breaks a foreign key of the table at the target",
            f"{_NOTHING} Drop the foreign key at the target: tables are written one by one.",
        ),
    ),
    (
        (4025, 3819),
        Meaning(
            TargetError,
            "A row breaks a CHECK of the table at the target",
            f"{_NOTHING} Drop the CHECK at the target.",
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
            "The user {user} lacks a right at the target",
            "Grant it. `tidesink validate --connect` prints the statements.",
        ),
    ),
    (
        (1148, 3948, 4166, 3950),
        Meaning(TargetError, "The server takes no LOAD DATA LOCAL", "Set its variable local_infile to 1."),
    ),
    (
        (1049,),
        Meaning(
            TargetError,
            "There is no such database",
            "Check the database's name in target.url, or create it: CREATE DATABASE",
        ),
    ),
    (
        (1070, 1071, 1117, 1118, 1074),
        Meaning(
            SchemaRefusedError,
            f"MySQL has a limit that this table passes ({MYSQL_LIMITS.columns:,} columns, some "
            f"{MYSQL_LIMITS.long_values} of them long texts or bytes, 65,535 bytes of a row without these, "
            f"{MYSQL_LIMITS.key_bytes:,} bytes of a key)",
            "Leave columns out with except_column_list, or choose a shorter key.",
        ),
    ),
    (
        (1005,),
        Meaning(
            SchemaRefusedError,
            "The server's storage engine cannot make the table: in MariaDB one of more than "
            f"{MYSQL_LIMITS.columns:,} columns, or of a name that a foreign key of another table refers to "
            "in vain",
            "SHOW ENGINE INNODB STATUS and the server's log say more, where it has no room or such a file "
            "too.",
        ),
    ),
    (
        (1059, 1102, 1103, 1166, 1300),
        Meaning(
            SchemaRefusedError,
            "MySQL takes no such name",
            "Change target.table, or give the table another name with a route.",
        ),
    ),
    (
        (1146, 1051),
        Meaning(
            TransientTargetError,
            "A table is gone that was there",
            f"{_LATER} If it lasts, find the program that drops tables at the target.",
        ),
    ),
    (
        (1060,),
        Meaning(TransientTargetError, "Another worker of the table added a column at this moment", _LATER),
    ),
    # Numbers of the engine's (126, 127, 144, 145) come through as they are in MariaDB.
    (
        (126, 127, 144, 145, 1034, 1194, 1195),
        Meaning(
            TransientTargetError,
            "A table is marked as crashed, as one of Aria or MyISAM is when the server stops in the middle",
            "A staging table is made again by the next try; any other needs REPAIR TABLE.",
        ),
    ),
    (
        (3161,),
        Meaning(
            TargetError,
            "The server refuses a storage engine (disabled_storage_engines)",
            f"{_NOTHING} tidesink's tables are InnoDB, and in MariaDB staging tables Aria. Take these off "
            "the variable's list.",
        ),
    ),
    (
        (3750, 1173),
        Meaning(
            TargetError,
            "The server takes no table without a primary key (sql_require_primary_key)",
            f"{_NOTHING} Give the table one, or set the variable to OFF for tidesink's user.",
        ),
    ),
    (
        (1785, 1786, 1787),
        Meaning(
            TargetError,
            "The server refuses a statement that its GTIDs cannot carry (enforce_gtid_consistency)",
            f"{_NOTHING} Make the table InnoDB, and drop triggers that write to tables of other engines. For "
            "rows that swap values of a unique column MySQL 8.0.13 and binlog_format ROW are needed, or the "
            "index must go.",
        ),
    ),
    (
        (1153, 1301),
        Meaning(
            TargetError,
            "A row is longer than the server takes in one statement",
            f"{_NOTHING} Raise its variable max_allowed_packet above twice the longest message of the topic.",
        ),
    ),
    (
        (1412, 1615),
        Meaning(
            TransientTargetError,
            "Another session changed the table's columns at this moment",
            f"{_LATER} If it lasts, find the program that alters tables at the target.",
        ),
    ),
    (
        (1047,),
        Meaning(
            TransientTargetError,
            "The node takes no statements: it joins its Galera cluster, or has lost the majority",
            f"{_LATER} If it lasts, look at the node's wsrep_ready and wsrep_cluster_status.",
        ),
    ),
    (
        (1644, 1643),
        Meaning(
            TargetError,
            "A trigger or a function at the target raises an error",
            f"{_NOTHING} Its words may hold values and are not shown. Correct the trigger or drop it.",
        ),
    ),
    (
        (1054,),
        Meaning(
            TargetError,
            "A column is gone that was there",
            f"{_NOTHING} If another program changed the table, undo its change.",
        ),
    ),
)
_MEANINGS: Final = {str(number): meaning for numbers, meaning in NUMBERS for number in numbers}
_UNKNOWN: Final = Meaning(
    TargetError,
    "The server refuses the statement",
    f"{_NOTHING} MariaDB's or MySQL's list of error codes has the number; see the server's log too.",
)
# The messages of these hold names of objects, settings and users, and no value of a row.
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
    """LOAD DATA LOCAL warned of a value that it changed, as a warning with this number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def code_of(exc: BaseException) -> str | None:
    """The number of an error; empty where the connection was cut, None for other exceptions."""
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
    """A PyMySQL error without values of rows; None for other exceptions."""
    code = code_of(exc)
    if code is None:
        return None
    shows = code in _NAMES_ONLY and len(exc.args) > 1
    return Fault(code, str(exc.args[1]) if shows else "")


def error_of(
    fault: Fault, *, table: str, committing: bool = False, user: str = "", grants: Sequence[str] = ()
) -> TidesinkError:
    """The error to raise for a fault, where a commit was under way or not (``Dialect.error_of``)."""
    code = fault.code
    if code in _CUT:
        if committing:
            return CommitUnknownError(
                "the connection was cut during the commit, which may have happened: ask for the committed "
                "progress first",
                table=table,
            )
        said = ": ".join(part for part in (code or "the connection was cut", fault.words) if part)
        return TransientTargetError(f"The server does not answer ({said}). {_LATER}", table=table)
    meaning = _MEANINGS.get(code, _UNKNOWN)
    return explained(meaning, fault, f"error {code}", table=table, user=user, grants=grants)
