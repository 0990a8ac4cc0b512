"""Cells of the databases' final rows that Debezium's wire does not tell, each with its reason.

A pattern (``*`` and ``?`` alone are special) is matched against ``capture/table/key/column``; the column
of a row that is missing is ``-``. What is excluded must differ, so that no exclusion outlives its reason.
"""

from __future__ import annotations

from typing import Final

from tests.golden.exclusions import Exclusion

_EARLY: Final = (
    "Debezium's snapshot writes years before 1 and the first days of year 1 through java.sql, whose "
    "calendar is Julian there: another day, and no BC"
)

EXCLUSIONS: Final = (
    Exclusion(
        "mdb_*/t_str/k?/uu",
        "Debezium 3.5.0 writes a streamed MariaDB UUID wrongly (zero bytes at its end move to its front); "
        "the snapshot's are right",
    ),
    Exclusion("mdb_*/t_time/1/d", "enable.time.adjuster (on) makes year 1 to year 2001"),
    Exclusion("mdb_*/t_time/1/dt", "enable.time.adjuster (on) makes year 1 to year 2001"),
    Exclusion("mdb_*/t_time/4/d*", "a zero date is written as null"),
    Exclusion("mdb_*/t_time/4/ts", "a zero date is written as null"),
    Exclusion("mdb_plain/t_time/*/t*", "time.precision.mode connect: milliseconds, and null beyond 0..24 h"),
    Exclusion("mdb_plain/t_time/*/dt6", "time.precision.mode connect: milliseconds"),
    Exclusion("mdb_double/t_time/*/t*", "time.precision.mode isostring: null beyond 0..24 h"),
    Exclusion("mdb_double/t_num/*/d*", "decimal.handling.mode double keeps 15 to 17 digits"),
    Exclusion("pg_*/p_toast/9/-", "written after this connector's capture ended"),
    Exclusion(
        "pg_plain/p_toast/2/bigb", "binary.handling.mode base64 writes null for an unchanged TOAST value"
    ),
    Exclusion("pg_*/p_str/*/nm", "Debezium 3.5.0 writes null for the type name"),
    Exclusion("pg_*/p_str/*/ad", "a composite type is left out without include.unknown.datatypes"),
    Exclusion("pg_*/p_arr/1/ia2", "Debezium 3.5.0 writes nulls for the rows of an array of arrays"),
    Exclusion("pg_plain/p_arr/1/tsa", "time.precision.mode connect: plain milliseconds in an array"),
    Exclusion("pg_*/p_num/3/m", "Debezium's snapshot reads money through a double"),
    Exclusion("pg_plain/p_time/2/t", "time.precision.mode connect: milliseconds"),
    Exclusion("pg_plain/p_time/2/ts", "time.precision.mode connect: milliseconds"),
    Exclusion("pg_*/p_time/2/ts3", _EARLY),
    Exclusion("pg_*/p_time/2/tstz", _EARLY),
    Exclusion("pg_*/p_time/3/d", _EARLY),
)


def excluded_cell(name: str) -> Exclusion | None:
    """The first exclusion that names a cell."""
    return next((one for one in EXCLUSIONS if one.matches(name)), None)
