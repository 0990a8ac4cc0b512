"""A table of the database with a column of each type, and another value of each."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from tests.e2e.replay import Servers
from tests.e2e.writing import TableWriter
from tests.mysql_values import COLUMNS
from tests.servers import create_topics
from tidesink.events import Column, ColumnType, TableId, TableSchema

# A type beside those of ``COLUMNS``, whose text MySQL changes.
_JSON: Final = {"js": ("json", '\'{"b": 1, "a": [1.5, null]}\'', "")}
# Of each column another value, as near to its own as may be.
OTHERS: Final = {
    "ti": "-127", "bo": "false", "tu": "254", "me": "0", "zf": "43", "bi": "-9223372036854775807",
    "bu": "18446744073709551614", "f1": "0.2", "f2": "3.4028232e38", "f3": "16777214", "f4": "1.1754945e-38",
    "f5": "1.101", "d1": "0.10000000000000002", "d2": "1.0000000000000002e22", "d3": "-1.797693134862316e-10",
    "d4": "123456789.1234568", "de": "-1.51",
    "dw": "12345678901234567890123456789012345.000000000000000000000000000002", "dz": "1.51", "ch": "'b'",
    "vc": "'É😀\\\\\\'\"%s:x'", "vs": "'a '", "la": "'e'", "tx": "'line\\n\\nline'", "em": "null",
    "bn": "x'ff01'", "vb": "x'00ff81'", "bl": "x'0a2262'", "eb": "x'00'", "b1": "b'0'", "b9": "b'100000000'",
    "b64": "x'fffffffffffffffe'", "en": "'red'", "se": "'a'", "s0": "'a'", "da": "'2020-02-28'",
    "d0": "'2020-02-28'", "dt": "'2020-01-01 01:02:03.500001'", "dn": "'2020-01-01 00:00:00'",
    "ts": "'2020-06-01 00:00:00.251'", "t0": "'2020-06-01 00:00:00'", "tm": "'-838:59:58.51'",
    "t1": "'01:02:04'", "ye": "2000", "y0": "1901", "nu": "0", "js": '\'{"a": [1.5, 0], "b": 1}\'',
}  # fmt: skip
_ID: Final = Column("id", ColumnType("int", sql="int"), nullable=False, handle=True, primary_key=True)
_KEPT: Final = ("id", "st")  # the key, and what is computed of it


def wide_table(connection: sa.Connection, schema: str, servers: Servers) -> tuple[str, list[str]]:
    """Make the table ``wide`` with a row for each column of ``OTHERS`` and two more, by number, and a topic.

    The topic, and the columns' names. It tells of the table, and of no row.
    """
    columns = {**COLUMNS, **_JSON}
    names = [name for name in columns if name not in _KEPT]
    assert {*names} == {*OTHERS}
    create = f"CREATE TABLE wide ({', '.join(f'{name} {sql}' for name, (sql, _, _) in columns.items())}"
    _run(connection, f"{create}, PRIMARY KEY (id))")
    for number in range(len(names) + 2):
        given = {name: value for name, (_, value, _) in columns.items() if value}
        given["id"] = str(number)
        values = ", ".join(given.values())
        _run(connection, f"INSERT INTO wide ({', '.join(given)}) VALUES ({values})")  # noqa: S608
    topic = f"{servers['prefix']}wide"
    create_topics(servers["brokers"], {topic: 1})
    named = TableSchema(TableId(schema, "wide"), (_ID,))
    feed = TableWriter(servers, named, protocol="canal-json", topic=topic)
    quoted = schema.replace("`", "``")
    feed.ddl(f"{create.replace(' wide ', f' `{quoted}`.wide ', 1)}, PRIMARY KEY (id))")
    feed.delete({"id": 10**6})
    return topic, names


def _run(connection: sa.Connection, statement: str) -> None:
    connection.exec_driver_sql(statement.replace("%", "%%"))
