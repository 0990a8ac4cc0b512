"""The parts of the SQL targets that need no server: settings, names, types, errors and CSV."""

from __future__ import annotations

import csv
import pickle
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, shape
from tests.unit.config.samples import FLAT_AVRO, changed, right, wrong
from tidesink.errors import (
    AccountingError,
    CommitUnknownError,
    SchemaRefusedError,
    TargetError,
    TidesinkError,
    TransientTargetError,
)
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.base import ReducedBatch
from tidesink.sinks.targets.sharing import quote_mysql, quote_postgres, text_mysql, text_postgres
from tidesink.sinks.targets.sql import mysql as mysql_connection
from tidesink.sinks.targets.sql import mysql_merge as mysql_errors
from tidesink.sinks.targets.sql import postgres_merge as postgres_errors
from tidesink.sinks.targets.sql.columns import plan_columns, wanted_type
from tidesink.sinks.targets.sql.dialect import Merge
from tidesink.sinks.targets.sql.faults import Fault
from tidesink.sinks.targets.sql.load import (
    AFTER_DELETE,
    FROM,
    IS_DELETE,
    KEPT,
    CsvLines,
    StagedRows,
    place_of,
    staged_columns,
)
from tidesink.sinks.targets.sql.location import Endpoint, endpoint_of, place_in
from tidesink.sinks.targets.sql.mysql_merge import check_upserted, is_computed

POSTGRES = {
    "type": "postgres",
    "url": "postgresql://db:5433/shop",
    "user": "tide",
    "password": "opensesame",
    "tls": {"mode": "verify-full", "ca": "./ca.pem"},
}


def settings_of(target: dict[str, Any]) -> Any:
    return right(changed(FLAT_AVRO, target=target)).target


def test_settings_say_where_and_hide_the_password() -> None:
    settings = settings_of(POSTGRES)
    endpoint = endpoint_of(settings)
    assert (endpoint.host, endpoint.port, endpoint.database, endpoint.tls) == (
        "db",
        5433,
        "shop",
        "verify-full",
    )
    assert endpoint.password == "opensesame"
    shown = repr(settings) + str(settings.model_dump_json()) + repr(endpoint) + endpoint.shown
    assert "opensesame" not in shown
    assert target_module(settings).place_of(settings, TableId("a", "b")) == "db:5433/shop a.b"
    mysql = settings_of(
        {"type": "mysql", "url": "mysql://db", "user": "tide", "table": "lake.{schema}_{table}"}
    )
    assert target_module(mysql).place_of(mysql, TableId("a", "b")) == "db:3306 lake.a_b"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "postgresql://tide:opensesame@db/shop"}, "remove user, password and options from the URL"),
        ({"url": "postgresql://db/shop?sslmode=disable"}, "remove user, password and options from the URL"),
        ({"url": "postgresql://db"}, "give a URL such as postgresql://"),
        ({"url": "mysql://db/shop"}, "give a URL such as postgresql://"),
        ({"url": "postgresql://db:port/shop"}, "give a URL such as postgresql://"),
        ({"table": "{table}"}, "use both placeholders"),
        ({"table": "{schema}_{table}"}, "two names with a dot"),
        ({"table": "{schema}.{table}.{x}"}, "unknown placeholder"),
        ({"tls": {"mode": "sometimes"}}, "verify-ca"),
        ({"view": "live"}, "a name that contains {table} and other characters"),
        ({"view": "{schema}.{table}"}, "a name that contains {table} and other characters"),
        ({"view": "{table}"}, "a name that contains {table} and other characters"),
    ],
)
def test_settings_are_refused_with_the_reason(change: dict[str, Any], said: str) -> None:
    problems = wrong(changed(FLAT_AVRO, target={**POSTGRES, **change}))
    assert any(said in str(problem) for problem in problems.values()), problems
    assert "opensesame" not in str(problems)


def test_a_template_fills_each_name_in_once() -> None:
    place = place_in("x{table}.{schema}{table}", TableId("a.b{table}", "{schema}"), quote_postgres)
    assert (place.schema, place.name) == ("x{schema}", "a.b{table}{schema}")
    assert place.location == '"x{schema}"."a.b{table}{schema}"'
    assert len(place.staging_prefix) + len(str(2**23)) < 63


def test_names_and_texts_are_quoted_for_each_database() -> None:
    assert quote_postgres('a"; DROP TABLE x; --') == '"a""; DROP TABLE x; --"'
    assert quote_mysql("a`; DROP TABLE x; --") == "`a``; DROP TABLE x; --`"
    assert text_postgres("it's \\ %s") == "'it''s \\ %s'"
    assert text_mysql("it's \\ \0") == "'it''s \\\\ \\0'"
    assert quote_postgres("ä" * 31) != quote_postgres("ä" * 30)
    for quote, names in {
        quote_postgres: ("", "a\0", "ä" * 32),
        quote_mysql: ("", "a" * 65, "a ", "😀"),
    }.items():
        for name in names:
            with pytest.raises(SchemaRefusedError):
                quote(name)


def test_lines_tell_null_from_every_text() -> None:
    import pyarrow as pa

    batch = pa.record_batch(
        {
            "text": pa.array(["", None, 'NULL"\n,\\N']),
            "number": pa.array([Decimal("-0.01"), None, Decimal("1E+2")], pa.decimal128(38, 2)),
            "float": pa.array([3.4028234663852886e38, None, 1e-45], pa.float32()),
            "time": pa.array([0, None, 1], pa.timestamp("us")),
            "naive": pa.array([datetime(1, 1, 1), None, None], pa.timestamp("us")),
        }
    )
    lines = CsvLines(7, (True, False, False, False, False), nul_refused=True)
    text = b"".join(lines.chunks([batch.slice(0, 2), batch.slice(0, 0), batch.slice(2)])).decode()
    assert lines.rows == 3
    assert text.splitlines()[1] == "7,NULL,NULL,NULL,NULL,NULL"
    rows = list(csv.reader(StringIO(text)))
    assert rows[0] == ["7", "", "-0.01", "3.4028234663852886e+38", "1970-01-01 00:00:00.000000",
                       "0001-01-01 00:00:00.000000"]  # fmt: skip
    assert rows[2][1] == 'NULL"\n,\\N'
    assert Decimal(rows[2][2]) == 100
    assert rows[2][4] == "1970-01-01 00:00:00.000001"


def test_a_text_with_nul_ends_the_lines_of_a_task() -> None:
    import pyarrow as pa

    batch = pa.record_batch({"number": pa.array([1]), "text": pa.array(["a\0"])})
    lines = CsvLines(7, (False, True), nul_refused=True)
    assert list(lines.chunks([batch])) == []
    assert (lines.nul_column, lines.rows) == (1, 0)
    assert b"".join(CsvLines(7, (False, True), nul_refused=False).chunks([batch])) == b'7,1,"a\0"\n'


def test_rows_say_what_they_leave_out_and_where_they_came_from() -> None:
    """A column that the target does not take is none that is left out, also where batches are slices."""
    import pyarrow as pa

    kept = [None, ["name", "gone"], [], ["amount", "name"], ["gone"]]
    rows = {
        "_op": pa.array(["upsert"] * 4 + ["delete"]),
        "key": pa.array([{"id": number} for number in range(5)]),
        "after": pa.array([{"id": number, "name": None, "amount": None} for number in range(4)] + [None]),
        "_kept": pa.array(kept, pa.list_(pa.string())),
        "_after_delete": pa.array([None, True, False, True, None]),
        "_topic": pa.array(["shop.orders"] * 5),
        "_partition": pa.array([3] * 5, pa.int32()),
        "_offset": pa.array(range(5)),
    }
    batch = ReducedBatch(shape(ID, NAME, AMOUNT), 4, 1, keeps=True)
    made = StagedRows(batch.shape, staged_columns(batch.row_format), "")
    whole = pa.record_batch(rows)
    assert made.sources == list(rows)
    found = [row for part in (whole.slice(0, 2), whole.slice(2)) for row in made(part).to_pylist()]
    assert [row[KEPT] for row in found] == [None, ",1,", None, ",2,1,", None]
    assert [row[AFTER_DELETE] for row in found] == [0, 1, 0, 1, 0]
    assert [row[IS_DELETE] for row in found] == [0, 0, 0, 0, 1]
    assert [row[FROM] is None for row in found] == [True, False, True, False, False]
    assert place_of(found[3][FROM]) == {"topic": "shop.orders", "partition": 3, "offset": 3}


BIG = Column("big", ColumnType("bigint unsigned"))
WIDE = Column("wide", ColumnType("decimal", precision=65, scale=30))


@pytest.mark.parametrize(
    ("database", "present", "widened"),
    [
        ("postgres", {"id": "bigint", "name": "text", "amount": "integer"}, {}),
        ("postgres", {"id": "integer", "name": "character varying(9)", "amount": "bigint"}, {"id": "bigint"}),
        ("postgres", {"id": "bigint", "name": "json"}, {"name": "text"}),
        ("mysql", {"id": "bigint", "name": "time(6)", "amount": "int"}, {"name": "longtext"}),
        ("mysql", {"id": "int", "name": "varchar(9)", "amount": "int"}, {"id": "bigint"}),
        ("postgres", {"id": "bigint", "big": "bigint"}, {"big": "numeric(20,0)"}),
        ("mysql", {"id": "bigint", "big": "bigint unsigned"}, {}),
        ("mysql", {"id": "bigint", "wide": "decimal(40,10)"}, {"wide": "decimal(65,30)"}),
        ("postgres", {"id": "bigint", "wide": "numeric(50,0)"}, {"wide": "numeric(80,30)"}),
        ("mysql", {"id": "bigint", "wide": "decimal(60,0)"}, {"wide": "longtext"}),
    ],
)  # fmt: skip
def test_columns_get_wider_where_they_must(
    database: Any, present: dict[str, str], widened: dict[str, str]
) -> None:
    columns = {column.name: column for column in (ID, NAME, AMOUNT, BIG, WIDE)}
    plan = plan_columns(present, shape(*(columns[name] for name in present)), database)
    assert (dict(plan.widened), plan.added) == (widened, ())


def test_a_column_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(SchemaRefusedError, match=r"column=amount.*inet"):
        plan_columns({"id": "bigint", "amount": "inet"}, shape(ID, AMOUNT), "postgres")


def test_a_bigint_unsigned_that_may_become_negative_gets_another_type() -> None:
    signed = Column("big", ColumnType("decimal", precision=20, scale=0))
    plan = plan_columns({"id": "bigint", "big": "bigint unsigned"}, shape(ID, signed), "mysql")
    assert dict(plan.widened) == {"big": "decimal(20,0)"}


def test_a_decimal_whose_digits_nothing_tells_is_not_rounded_to_those_of_a_column() -> None:
    amount = Column("amount", ColumnType("decimal"))
    plan = plan_columns({"id": "bigint", "amount": "numeric(50,2)"}, shape(ID, amount), "postgres")
    assert dict(plan.widened) == {"amount": "numeric"}


def test_a_mysql_key_without_a_length_gets_the_settings_or_is_refused_with_the_way_out() -> None:
    key = Column("code", ColumnType("varchar"), nullable=False, handle=True, primary_key=True)
    with pytest.raises(SchemaRefusedError, match=r"column=code.*needs a length.*Create the table.*_0900_bin"):
        plan_columns({}, shape(key), "mysql")
    for one, made in ((key, "varchar(255)"), (replace(key, type=ColumnType("blob")), "varbinary(255)")):
        assert wanted_type(shape(one).columns[0], shape(one), "mysql", key_length=255) == made
    # A table that is there is taken as it is.
    assert (
        wanted_type(shape(key).columns[0], shape(key), "mysql", "varchar(9)", key_length=255) == "varchar(9)"
    )
    assert plan_columns({"code": "varchar(9)"}, shape(key), "mysql").widened == {}
    assert plan_columns({"code": "text"}, shape(key), "postgres").widened == {}


class LinesStoppedError(Exception):
    """Spark had no more lines."""


def test_mysql_has_no_connection_while_spark_makes_a_tasks_lines() -> None:
    """It would close one that is silent for so long."""

    def lines() -> Iterator[memoryview]:
        yield memoryview(b"1\n")
        raise LinesStoppedError

    with pytest.raises(LinesStoppedError):
        mysql_connection.load(Endpoint("127.0.0.1", 1, "", "tide", ""), "LOAD …", lines())


@pytest.mark.parametrize(("updated", "least", "most"), [(0, 3, 3), (1, 3, 5), (3, 3, 9)])
def test_mysql_may_count_so_much_for_three_upserts(updated: int, least: int, most: int) -> None:
    place = place_in("{schema}.{table}", TableId("shop", "orders"), quote_mysql)
    merge = Merge(place.location, place.staging(1), (), (7,), 3, 0, False, None, place)
    for counted in (least, most):
        check_upserted(merge, counted, updated)
    for counted in (least - 1, most + 1):
        with pytest.raises(AccountingError, match="The server reports"):
            check_upserted(merge, counted, updated)


# A server that restarted marks the tables of its engines without a log.
CRASHED = ("126", "127", "144", "145", "1034", "1194", "1195")


@pytest.mark.parametrize(
    ("errors", "code", "error"),
    [
        (postgres_errors, "40P01", TransientTargetError),
        (postgres_errors, "55P03", TransientTargetError),
        (postgres_errors, "08006", TransientTargetError),
        (postgres_errors, "53300", TransientTargetError),
        (postgres_errors, "23505", TargetError),
        (postgres_errors, "42P10", SchemaRefusedError),
        (postgres_errors, "42701", TransientTargetError),
        (postgres_errors, "99999", TargetError),
        (mysql_errors, "1213", TransientTargetError),
        (mysql_errors, "1205", TransientTargetError),
        (mysql_errors, "2013", TransientTargetError),
        (mysql_errors, "4031", TransientTargetError),
        (mysql_errors, "1040", TransientTargetError),
        (mysql_errors, "1060", TransientTargetError),
        (mysql_errors, "1062", TargetError),
        (mysql_errors, "1071", SchemaRefusedError),
        (mysql_errors, "1005", SchemaRefusedError),
        *((mysql_errors, code, TransientTargetError) for code in CRASHED),
        (mysql_errors, "9999", TargetError),
    ],
)
def test_errors_are_told_by_their_code(errors: Any, code: str, error: type[TidesinkError]) -> None:
    found = errors.error_of(Fault(code), table="shop.orders")
    assert type(found) is error
    assert code in found.message
    assert type(pickle.loads(pickle.dumps(found))) is error  # noqa: S301


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("3161", "disabled_storage_engines"),
        ("3750", "sql_require_primary_key"),
        ("1785", "enforce_gtid_consistency"),
        ("145", "REPAIR TABLE"),
        ("1005", "1,017 columns.*SHOW ENGINE INNODB STATUS"),
    ],
)
def test_what_a_mysql_server_may_refuse_has_a_remedy(code: str, remedy: str) -> None:
    assert re.search(remedy, mysql_errors.error_of(Fault(code), table="shop.orders").message)


@pytest.mark.parametrize("errors", [postgres_errors, mysql_errors])
def test_a_cut_commit_is_unknown_and_a_refused_one_is_not(errors: Any) -> None:
    assert isinstance(errors.error_of(Fault(""), table="t", committing=True), CommitUnknownError)
    assert isinstance(errors.error_of(Fault(""), table="t"), TransientTargetError)
    unique = {"postgres_merge": "23505", "mysql_merge": "1062"}[errors.__name__.rpartition(".")[2]]
    assert type(errors.error_of(Fault(unique), table="t", committing=True)) is TargetError
    assert errors.code_of(ValueError("not the database's")) is None


@pytest.mark.parametrize(
    ("extra", "computed"),
    [
        ("", False),
        ("auto_increment", False),
        ("DEFAULT_GENERATED", False),
        ("DEFAULT_GENERATED on update CURRENT_TIMESTAMP", False),
        ("VIRTUAL GENERATED", True),
        ("STORED GENERATED", True),
        ("STORED GENERATED INVISIBLE", True),
        ("PERSISTENT", True),
    ],
)
def test_a_default_that_is_an_expression_is_no_computed_column(extra: str, computed: bool) -> None:
    assert is_computed(extra) is computed


def test_rows_on_their_way_to_mysql_are_in_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A task that is killed here would leave them there.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = list[list[Path]]()

    def chunks() -> Iterator[memoryview]:
        for _ in range(3):
            yield memoryview(bytes(1 << 20))
            seen.append([*tmp_path.iterdir()])

    endpoint = Endpoint("127.0.0.1", 1, "", "tide", "opensesame")
    with pytest.raises(TransientTargetError, match="connection refused"):
        mysql_connection.load(endpoint, "LOAD DATA LOCAL INFILE %s", chunks())
    assert seen == [[], [], []]
