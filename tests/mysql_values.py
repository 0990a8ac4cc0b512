"""A value of every type of a MySQL-compatible database, and the text that canal-json carries of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

# Of each type: its SQL, a value as a literal, and the text that TiCDC writes (tiflow c7b2588).
COLUMNS: Final = {
    "id": ("int", "1", "1"),
    "ti": ("tinyint", "-128", "-128"),
    "bo": ("boolean", "true", "1"),
    "tu": ("tinyint unsigned", "255", "255"),
    "me": ("mediumint unsigned", "16777215", "16777215"),
    "zf": ("int(8) unsigned zerofill", "42", "42"),
    "bi": ("bigint", "-9223372036854775808", "-9223372036854775808"),
    "bu": ("bigint unsigned", "18446744073709551615", "18446744073709551615"),
    "f1": ("float", "0.1", "0.1"),
    "f2": ("float", "3.4028234e38", "340282350000000000000000000000000000000"),
    "f3": ("float", "16777216", "16777216"),
    "f4": ("float", "1.17549435e-38", "0.000000000000000000000000000000000000011754944"),
    "f5": ("float(10,3)", "1.1", "1.1"),
    "d1": ("double", "0.1", "0.1"),
    "d2": ("double", "1e22", "10000000000000000000000"),
    "d3": ("double", "-1.7976931348623158e-10", "-0.00000000017976931348623158"),
    "d4": ("double", "123456789.12345678", "123456789.12345678"),
    "de": ("decimal(10,2)", "-1.5", "-1.50"),
    "dw": ("decimal(65,30)", "12345678901234567890123456789012345.000000000000000000000000000001",
           "12345678901234567890123456789012345.000000000000000000000000000001"),
    "dz": ("decimal(8,2) unsigned zerofill", "1.5", "1.50"),
    "ch": ("char(5)", "'a  '", "a"),
    "vc": ("varchar(20)", "'é😀\\\\\\'\"%s:x'", "é😀\\'\"%s:x"),
    "vs": ("varchar(5)", "'a  '", "a  "),
    "la": ("varchar(5) character set latin1", "'é'", "é"),
    "tx": ("mediumtext", "'line\\nline'", "line\nline"),
    "em": ("varchar(5)", "''", ""),
    "bn": ("binary(4)", "x'ff00'", "ÿ\x00\x00\x00"),
    "vb": ("varbinary(5)", "x'00ff80'", "\x00ÿ\x80"),
    "bl": ("longblob", "x'0a2261'", '\n"a'),
    "eb": ("blob", "''", ""),
    "b1": ("bit(1)", "b'1'", "1"),
    "b9": ("bit(9)", "b'100000001'", "257"),
    "b64": ("bit(64)", "x'ffffffffffffffff'", "18446744073709551615"),
    "en": ("enum('red','green','b,l''ue')", "'b,l''ue'", "3"),
    "se": ("set('a','b','c')", "'a,c'", "5"),
    "s0": ("set('a','b','c')", "''", "0"),
    "da": ("date", "'2020-02-29'", "2020-02-29"),
    "d0": ("date", "'0000-00-00'", "0000-00-00"),
    "dt": ("datetime(6)", "'2020-01-01 01:02:03.5'", "2020-01-01 01:02:03.500000"),
    "dn": ("datetime", "'0000-00-00 00:00:00'", "0000-00-00 00:00:00"),
    "ts": ("timestamp(3) null", "'2020-06-01 00:00:00.25'", "2020-06-01 02:00:00.250"),
    "t0": ("timestamp null", "'0000-00-00 00:00:00'", "0000-00-00 00:00:00"),
    "tm": ("time(2)", "'-838:59:58.5'", "-838:59:58.50"),
    "t1": ("time", "'01:02:03'", "01:02:03"),
    "ye": ("year", "1999", "1999"),
    "y0": ("year", "'0000'", "0"),
    "nu": ("bigint unsigned", "null", None),
    "st": ("int as (id + 1) stored", "", "2"),
}  # fmt: skip
VIRTUAL: Final = "vi int as (id + 2) virtual"


@contextmanager
def own_database(url: str) -> Iterator[tuple[sa.Connection, str]]:
    """A connection to a database of the test's own, and its name, which needs quotes."""
    name = f"s`{uuid.uuid4().hex[:8]}%"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    quoted = name.replace("`", "``").replace("%", "%%")
    with engine.connect() as connection:
        connection.exec_driver_sql("SET sql_mode = '', time_zone = '+00:00'")
        connection.exec_driver_sql(f"CREATE DATABASE `{quoted}` CHARACTER SET utf8mb4")
        connection.exec_driver_sql(f"USE `{quoted}`")
        yield connection, name
        connection.exec_driver_sql(f"DROP DATABASE `{quoted}`")
    engine.dispose()


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def make_wide(connection: sa.Connection, name: str, key: str) -> None:
    """A table with all columns, and one row."""
    columns = ", ".join(f"{column} {sql}" for column, (sql, _, _) in COLUMNS.items())
    connection.exec_driver_sql(f"CREATE TABLE {name} ({columns}, {VIRTUAL}, PRIMARY KEY ({key}))")
    given = {column: value for column, (_, value, _) in COLUMNS.items() if value}
    values = ", ".join(_literal(value) for value in given.values())
    connection.exec_driver_sql(f"INSERT INTO {name} ({', '.join(given)}) VALUES ({values})")  # noqa: S608
