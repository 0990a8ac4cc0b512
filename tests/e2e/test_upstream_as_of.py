"""Rows cut down to their handle key, made whole as of their commit: in Python, and on Spark's executors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import pytest
import sqlalchemy as sa

from tests.full import FULL
from tests.spark.decoded import decode_here
from tests.spark.python_rows import stored
from tests.tidb_front import commit_ts
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.errors import SourceUnavailableError
from tidesink.events import ChangeEvent, Message
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.plans import PlanSettings
from tidesink.sinks.spark.errors import raised_task_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.servers

INSERTED: Final = datetime(2026, 1, 1, 0, 0, 0, 5000, timezone.utc)
UPDATED: Final = INSERTED + timedelta(milliseconds=1)
DELETED: Final = INSERTED + timedelta(hours=1)
SQL: Final = (
    "CREATE TABLE `{}`.t (id INT NOT NULL, k VARCHAR(9) NOT NULL, v TEXT, b VARBINARY(9), n BIGINT UNSIGNED, "
    "e ENUM('x','y'), d DECIMAL(6,2), at TIMESTAMP(3) NULL, PRIMARY KEY (id, k))"
)
FIRST: Final = {"id": 1, "k": "kk", "v": "old", "b": b"\x00\xff", "n": 2**64 - 1, "e": "x", "d": "1.50",
                "at": "2026-06-01 00:00:00.250"}  # fmt: skip


@pytest.fixture
def database(mariadb_url: str) -> Iterator[str]:
    """A database with one row that was inserted, updated and deleted at known moments."""
    name = f"s{uuid.uuid4().hex[:8]}"
    engine = sa.create_engine(mariadb_url, isolation_level="AUTOCOMMIT")
    table = sa.table("t", *map(sa.column, FIRST), schema=name)
    changes = (
        (INSERTED, sa.insert(table).values(FIRST)),
        (UPDATED, sa.update(table).values(v="new", n=7)),
        (DELETED, sa.delete(table)),
    )
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        connection.exec_driver_sql("SET time_zone = '+00:00'")
        connection.exec_driver_sql(SQL.format(name) + " WITH SYSTEM VERSIONING")
        for moment, change in changes:
            connection.exec_driver_sql(f"SET @@timestamp = {moment.timestamp():.6f}")
            connection.execute(change)
        yield name
        connection.exec_driver_sql(f"DROP DATABASE {name}")
    engine.dispose()


def _messages(database: str) -> list[Message]:
    key = {"id": "1", "k": "kk"}
    kinds: tuple[tuple[str, datetime, list[dict[str, str]] | None], ...] = (
        ("INSERT", INSERTED, None),
        ("UPDATE", UPDATED, [key]),
        ("UPDATE", UPDATED, [{}]),
        ("DELETE", DELETED, None),
    )
    found = []
    for offset, (kind, moment, old) in enumerate(kinds):
        tso = commit_ts(moment)
        members = {
            "id": 0, "database": database, "table": "t", "pkNames": ["id", "k"], "isDdl": False, "type": kind,
            "es": tso >> 18, "ts": 1, "sql": "", "sqlType": {"id": 4, "k": 12},
            "mysqlType": {"id": "int", "k": "varchar"}, "old": old, "data": [key],
            "_tidb": {"commitTs": tso, "onlyHandleKey": True},
        }  # fmt: skip
        value = json.dumps(members, separators=(",", ":")).encode()
        found.append(Message("t", 0, offset, None, value))
    return found


def _options(url: str) -> CanalJsonOptions:
    return CanalJsonOptions(upstream_url=url, time_zone="Europe/Berlin")


def _codec(url: str, database: str) -> CanalJsonCodec:
    definitions = TableDefinitions([parse_create_table(SQL.format(database))])
    return CanalJsonCodec(definitions=definitions, options=_options(url))


def _events(url: str, database: str) -> list[ChangeEvent]:
    codec = _codec(url, database)
    events = [event for message in _messages(database) for event in codec.decode(message)]
    return [event for event in events if isinstance(event, ChangeEvent)]


def test_each_change_has_the_rows_of_its_moment(tidb_url: str, database: str) -> None:
    inserted, updated, partly, deleted = _events(tidb_url, database)
    assert inserted.after is not None
    first: dict[str, Any] = {**FIRST, "d": inserted.after["d"], "at": "2026-06-01 02:00:00.250"}
    assert str(first["d"]) == "1.50"
    assert (inserted.before, inserted.after) == (None, first)
    for event in (updated, partly):
        assert (event.before, event.after) == (first, {**first, "v": "new", "n": 7})
    assert (deleted.before, deleted.after) == ({"id": 1, "k": "kk"}, None)


@FULL
def test_executors_ask_as_the_python_codec_does(tidb_url: str, database: str, spark: SparkSession) -> None:
    schema = parse_create_table(SQL.format(database))
    plan = canal_json_plan(schema, PlanSettings(time_zone="Europe/Berlin"), options=_options(tidb_url))
    found = decode_here(plan, _messages(database))
    for event, row in zip(_events(tidb_url, database), found, strict=True):
        expected = {"old_key": None, **stored(event, plan.shape)}
        image = "key" if row.kind == "delete" else "after"
        values = {f"{image}.{name}": value for name, value in (getattr(row, image) or {}).items()}
        reported = {"kind": row.kind, "error": row.error, "commit_ts": row.commit_ts, "old_key": row.old_key}
        assert {**reported, **values} == expected


def test_an_upstream_that_does_not_answer_makes_no_bad_record(spark: SparkSession) -> None:
    schema = parse_create_table(SQL.format("s"))
    options = CanalJsonOptions(upstream_url="mysql+pymysql://u:SECRET@127.0.0.1:1/")
    plan = canal_json_plan(schema, options=options)
    with (
        pytest.raises(SourceUnavailableError, match="The upstream does not answer") as caught,
        raised_task_errors(),
    ):
        decode_here(plan, _messages("s"))
    assert "SECRET" not in f"{caught.value} {caught.value.__cause__} {plan!r}"
    (deleted,) = decode_here(plan, _messages("s")[3:])
    assert deleted.kind == "delete"
