"""MySQL's and MariaDB's errors as tidesink's, by number and never by text: the texts may hold values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidesink.errors import (
    CommitUnknownError,
    SchemaRefusedError,
    TargetError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.sinks.targets.sql_limits import MYSQL_LIMITS

_Meaning = tuple[type[TidesinkError], str]
# The connection was cut (4031: for its silence) or could not be made, or the server is going down.
_CUT: Final = frozenset({"", "1053", "1152", "1158", "1159", "1160", "1161", "1927", "4031"}) | {
    str(number) for number in range(2000, 2062)
}
_LOCKED: Final[_Meaning] = (
    TransientTargetError,
    "others hold locks on the rows or the table; nothing of this batch was written",
)
_NO_ROOM: Final[_Meaning] = (TransientTargetError, "the server has no room, memory or connections left")
_READ_ONLY: Final[_Meaning] = (
    TransientTargetError,
    "the server takes no writes: target.url must name the primary",
)
_UNIQUE: Final[_Meaning] = (
    TargetError,
    "a row has a value that another row has, in a column with a unique index that is not the key, and "
    "nothing was written: drop the index at the target, or mend the row",
)
_VALUE: Final[_Meaning] = (
    TargetError,
    "a value does not fit its column at the target, and nothing was written: was the column's type changed "
    "by hand?",
)
_CONSTRAINT: Final[_Meaning] = (
    TargetError,
    "a row breaks a constraint of the table, and nothing was written: drop it at the target",
)
_RIGHTS: Final[_Meaning] = (
    TargetError,
    "the user may not do this: grant SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP and CREATE "
    "TEMPORARY TABLES on the databases",
)
_LOCAL: Final[_Meaning] = (
    TargetError,
    "the server takes no LOAD DATA LOCAL: set its variable local_infile to 1",
)
_LIMIT: Final[_Meaning] = (
    SchemaRefusedError,
    f"MySQL has a limit that this table passes ({MYSQL_LIMITS.columns:,} columns, some "
    f"{MYSQL_LIMITS.long_values} of them long texts or bytes, 65,535 bytes of a row without these, "
    f"{MYSQL_LIMITS.key_bytes:,} bytes of a key)",
)
# The number inside, which tells why, is in the text alone.
_UNMADE: Final[_Meaning] = (
    SchemaRefusedError,
    "the server's storage engine cannot make the table: in MariaDB one of more than "
    f"{MYSQL_LIMITS.columns:,} columns, or of a name that a foreign key of another table refers to "
    "in vain. SHOW ENGINE INNODB STATUS and the server's log say more, where it has no room or such a file "
    "too",
)
_NAME: Final[_Meaning] = (SchemaRefusedError, "MySQL takes no such name")
_GONE: Final[_Meaning] = (
    TransientTargetError,
    "a table is gone that was there: was it dropped by another program?",
)
_ADDED: Final[_Meaning] = (
    TransientTargetError,
    "another worker of the table added a column at this moment",
)
# Numbers of the engine's (126, 127, 144, 145) come through as they are in MariaDB.
_CRASHED: Final[_Meaning] = (
    TransientTargetError,
    "a table is marked as crashed, as one of Aria or MyISAM is when the server stops in the middle: a "
    "staging table is made anew by the next try, any other needs REPAIR TABLE",
)
_ENGINE: Final[_Meaning] = (
    TargetError,
    "the server refuses a storage engine (disabled_storage_engines), and nothing was written: tidesink's "
    "tables are InnoDB, and in MariaDB staging tables Aria. Take these off the variable's list",
)
_KEY_WANTED: Final[_Meaning] = (
    TargetError,
    "the server takes no table without a primary key (sql_require_primary_key), and nothing was written: "
    "give the table one, or set the variable to OFF for tidesink's user",
)
_GTID: Final[_Meaning] = (
    TargetError,
    "the server refuses a statement that its GTIDs cannot carry (enforce_gtid_consistency), and nothing was "
    "written: make the table InnoDB, and drop triggers that write to tables of other engines. For rows that "
    "swap values of a unique column MySQL 8.0.13 and binlog_format ROW are needed, or the index must go",
)
_PACKET: Final[_Meaning] = (
    TargetError,
    "a row is longer than the server takes in one statement, and nothing was written: raise its variable "
    "max_allowed_packet above twice the longest message of the topic",
)
_NUMBERS: Final[Mapping[_Meaning, tuple[int, ...]]] = MappingProxyType(
    {
        _LOCKED: (1205, 1213, 1020, 3572, 3058, 1614, 1969, 3024),
        _NO_ROOM: (1021, 1037, 1038, 1040, 1041, 1114, 1203, 1226),
        _READ_ONLY: (1290, 1836, 1792),
        _UNIQUE: (1062, 1586, 1169),
        _VALUE: (1048, 1263, 1264, 1265, 1292, 1366, 1367, 1406, 1411, 1441, 1690, 3140, 1261, 1262, 3819),
        _CONSTRAINT: (1451, 1452, 1216, 1217, 4025, 1364),
        _RIGHTS: (1044, 1045, 1142, 1143, 1227, 1370, 1410, 1698, 3118),
        _LOCAL: (1148, 3948, 4166, 3950),
        _LIMIT: (1070, 1071, 1117, 1118, 1074),
        _UNMADE: (1005,),
        _NAME: (1059, 1102, 1103, 1166, 1300),
        _GONE: (1146, 1051),
        _ADDED: (1060,),
        _CRASHED: (126, 127, 144, 145, 1034, 1194, 1195),
        _ENGINE: (3161,),
        _KEY_WANTED: (3750, 1173),
        _GTID: (1785, 1786, 1787),
        _PACKET: (1153, 1301),
    }
)
_MEANINGS: Final = {str(number): meaning for meaning, numbers in _NUMBERS.items() for number in numbers}


class LoadRefusedError(Exception):
    """LOAD DATA LOCAL told of a value that it changed, as a warning with this number."""

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


def error_of(code: str, *, table: str, committing: bool = False) -> TidesinkError:
    """The error to raise for a number, where a commit was under way or not."""
    if code in _CUT:
        if committing:
            return CommitUnknownError(
                "the connection was cut during the commit, which may have happened: ask for the committed "
                "progress first",
                table=table,
            )
        return TransientTargetError(f"the server does not answer ({code or 'no connection'})", table=table)
    if code in _MEANINGS:
        error, message = _MEANINGS[code]
        return error(f"{message} (error {code})", table=table)
    return TargetError(f"the server refuses (error {code}), and nothing was written", table=table)
