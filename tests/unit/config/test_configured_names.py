"""Names of columns in the config, where the source's database tells names apart by their case."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest
from pydantic import SecretStr

from tests.columns import ID
from tests.decoded_batches import as_records
from tests.unit.config.samples import CANAL_JSON, changed, right, wrong
from tests.worker_contexts import worker_context
from tidesink.codecs.debezium.envelope import has_exact_names
from tidesink.codecs.debezium.inference import first_row
from tidesink.codecs.options import DebeziumOptions
from tidesink.config import Config
from tidesink.config.source import DatabaseSettings
from tidesink.errors import ConfigError
from tidesink.events import Column, ColumnType, Message, TableId, TableSchema
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.decode.database_types import database_connector
from tidesink.sinks.decode.debezium_avro import DebeziumAvroDecoder, debezium_avro_plan
from tidesink.sinks.decode.debezium_changes import DatabaseFacts
from tidesink.sinks.decode.debezium_json import Writers, debezium_json_plan, first_writer
from tidesink.sinks.decode.open import open_decoding
from tidesink.sinks.decode.plans import PlanSettings, SubjectSchemas
from tidesink.sinks.kafka.fetch import FetchRange
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.schema_changes.decisions import SchemaChange
from tidesink.sinks.worker.open_table import decoding_parts
from tidesink.typemap.projection import Projection, project, read_filter
from tidesink.typemap.target_schema import TargetColumn, TargetSchema, check_spelling, shape_of

T: Final = TableId("public", "people")
TOPIC: Final = "app.public.people"
SOURCES: Final[dict[str, dict[str, str]]] = {
    "postgresql": {"connector": "postgresql", "schema": "public", "table": "people"},
    "oracle": {"connector": "oracle", "schema": "public", "table": "people"},
    "mysql": {"connector": "mysql", "db": "public", "table": "people"},
    "mariadb": {"connector": "mariadb", "db": "public", "table": "people"},
    "TiCDC": {"connector": "TiCDC", "db": "public", "table": "people", "commit_ts": "7"},
}


def _shape(*names: str, exact: bool = True) -> TargetSchema:
    columns = (ID, *(Column(name, ColumnType("varchar", length=9)) for name in names))
    return replace(shape_of(TableSchema(T, columns)), exact_names=exact)


ONE, BOTH = _shape("name"), _shape("name", "Name")
OF_THE_SECOND: Final = [
    Projection(except_columns=("Name",)),
    Projection(rename={"Name": "name_upper"}),
    Projection(columns=("id", "Name")),
    Projection(row_filter=read_filter("Name = 'a'")),
    Projection(row_filter=read_filter("name = 'a' AND Name = 'b'")),
]


@pytest.mark.parametrize("projection", OF_THE_SECOND)
def test_a_setting_never_means_the_column_of_another_case(projection: Projection) -> None:
    with pytest.raises(ConfigError, match="has no column Name, but a column name"):
        project(projection, ONE, own=())


def test_a_setting_means_the_same_before_and_after_the_second_column_comes() -> None:
    for projection, before, after in (
        (Projection(except_columns=("name",)), ["id"], ["id", "Name"]),
        (Projection(rename={"name": "lower"}), ["id", "lower"], ["id", "lower", "Name"]),
        (Projection(columns=("id", "name")), ["id", "name"], ["id", "name"]),
    ):
        names = [[c.name for c in project(projection, shape, own=()).shape.columns] for shape in (ONE, BOTH)]
        assert names == [before, after]


@pytest.mark.parametrize("projection", OF_THE_SECOND[:4])
def test_names_of_mysql_and_tidb_match_in_any_case(projection: Projection) -> None:
    laid = project(projection, _shape("NAME", exact=False), own=())
    assert laid.shape.omitted == {name.lower() for name in projection.except_columns}


@pytest.mark.parametrize(
    "projection",
    [
        Projection(rename={"name": "a", "Name": "b"}),
        Projection(columns=("id", "name", "NAME")),
        Projection(except_columns=("name", "NAME")),
    ],
)
def test_two_spellings_of_one_column_are_refused(projection: Projection) -> None:
    with pytest.raises(ConfigError, match="are the same column of"):
        project(projection, _shape("name", exact=False), own=())


def test_a_column_that_may_be_one_left_out_waits_however_its_name_was_folded() -> None:
    projection = Projection(except_columns=("Name",))
    for folded in ("name", "Name"):
        column = TargetColumn("later", ColumnType("int"), "int", instead_of=frozenset({folded}))
        assert projection.may_be_excluded(column)
        assert projection.excluded_among(column.instead_of) == ("Name",)


def test_what_is_accepted_of_one_column_does_not_hold_for_the_other() -> None:
    changes = [
        SchemaChange("add", column, before, "int")
        for column, before in (("name", "x"), ("Name", "x"), ("new", "name"), ("new", "Name"))
    ]
    changes += [SchemaChange(kind, name) for kind in ("widen", "narrow") for name in ("name", "Name")]
    assert len({change.digest for change in changes}) == len(changes)


# Which sources tell names apart


def test_names_must_be_exact_for_postgres_alone() -> None:
    connectors = (*SOURCES, "sqlserver", "db2", "informix", "yugabytedb", "")
    assert [name for name in connectors if has_exact_names(name)] == ["postgresql", "yugabytedb"]


def _message(connector: str, row: dict[str, Any], *, at: int = 0, flattened: bool = False) -> Message:
    value = {"before": None, "after": row, "source": SOURCES[connector], "op": "c"}
    found: dict[str, Any] = row | {"__connector": connector, "__op": "c"} if flattened else value
    return Message(
        TOPIC, 0, at, json.dumps({"id": row["id"]}).encode(), json.dumps(found).encode(), 1000 + at
    )


@pytest.mark.parametrize("flattened", [False, True])
@pytest.mark.parametrize("connector", SOURCES)
def test_records_tell_the_connector(connector: str, flattened: bool) -> None:
    message = _message(connector, {"id": 1, "name": "a"}, flattened=flattened)
    row = first_row([message], DebeziumOptions())
    assert row is not None
    writers = Writers().with_new([first_writer(row)])
    exact = connector == "postgresql"
    assert debezium_json_plan(T, writers).shape.exact_names is exact
    # A plan that was made before, and records that tasks report, say no more.
    again = writers.with_new([replace(first_writer(row), connector="")], later=True)
    base = replace(debezium_json_plan(T, writers).shape, exact_names=False)
    assert debezium_json_plan(T, again, PlanSettings(base=base, keys=("id",))).shape.exact_names is exact
    if exact:
        with pytest.raises(ConfigError, match=r"keys: public\.people has no column ID, but a column id"):
            debezium_json_plan(T, writers, PlanSettings(keys=("ID",)))
    else:
        assert debezium_json_plan(T, writers, PlanSettings(keys=("ID",))).shape.keys == ("id",)


UNQUOTED: Final = {
    "oracle": {"connector": "oracle", "schema": "public", "table": "people"},
    "sqlserver": {"connector": "sqlserver", "schema": "public", "table": "people"},
    # ExtractNewRecordState without add.fields: nothing names the connector.
    "": None,
}


def _written(connector: str, row: dict[str, Any], at: int = 0) -> Message:
    """A record of a source in which a name in another case means the column, as long as there is one."""
    source, key = UNQUOTED[connector], {name: one for name, one in row.items() if name.lower() == "id"}
    image = _struct({name: "int64" if name in key else "string" for name in row})
    value = {"schema": {**image, "optional": False, "name": f"{TOPIC}.Value"}, "payload": row}
    if source is not None:
        kinds = {"before": image, "after": image, "source": _struct(dict.fromkeys(source, "string"))}
        payload = {"before": None, "after": row, "source": source, "op": "c"}
        value = {"schema": _struct({**kinds, "op": "string"}), "payload": payload}
    keyed = {"schema": _struct(dict.fromkeys(key, "int64")), "payload": key}
    return Message(TOPIC, 0, at, json.dumps(keyed).encode(), json.dumps(value).encode(), 1000 + at)


def _struct(kinds: dict[str, Any]) -> dict[str, Any]:
    """A struct's schema; ``kinds`` are schemas, or names of Kafka Connect's types."""
    fields = [
        {**(kind if isinstance(kind, dict) else {"type": kind}), "optional": True, "field": name}
        for name, kind in kinds.items()
    ]
    return {"type": "struct", "fields": fields, "optional": True}


def _written_by(*messages: Message) -> Writers:
    writers = Writers()
    for message in messages:
        row = first_row([message], DebeziumOptions())
        assert row is not None
        writers = writers.with_new([first_writer(row)], later=bool(writers.reported))
    return writers


@pytest.mark.parametrize("connector", UNQUOTED)
def test_a_name_in_another_case_means_the_one_column_that_fits(connector: str) -> None:
    writers = _written_by(_written(connector, {"ID": 1, "NAME": "a"}))
    plan = debezium_json_plan(T, writers, PlanSettings(keys=("Id",)))
    assert plan.shape.keys == ("ID",)
    laid = project(Projection(except_columns=("name",)), plan.shape, own=())
    assert [one.name for one in laid.shape.columns] == ["ID"]


@pytest.mark.parametrize("connector", UNQUOTED)
def test_a_column_renamed_in_case_stays_one_column_until_a_row_has_both(connector: str) -> None:
    one, other = _written(connector, {"id": 1, "name": "a"}), _written(connector, {"id": 1, "Name": "a"}, 1)
    plan = debezium_json_plan(T, _written_by(one, other), PlanSettings(keys=("id",)))
    assert [c.name for c in plan.shape.columns] == ["id", "name"]
    both = _written(connector, {"id": 1, "name": "a", "Name": "b"}, 2)
    plan = debezium_json_plan(T, _written_by(one, both), PlanSettings(keys=("id",)))
    assert [c.name for c in plan.shape.columns] == ["id", "name", "Name"]
    with pytest.raises(ConfigError, match="can be name or Name, which are different columns"):
        project(Projection(except_columns=("NAME",)), plan.shape, own=())


def test_the_url_of_the_database_tells_what_records_without_a_connector_do_not() -> None:
    writers = _written_by(_written("", {"id": 1, "name": "a"}))
    for scheme in ("postgresql", "postgresql+psycopg", "mysql", "mysql+pymysql"):
        settings = DatabaseSettings.model_construct(url=SecretStr(f"{scheme}://reader@db/shop"))
        connector = database_connector(settings)
        plan = debezium_json_plan(
            T, writers, PlanSettings(keys=("id",)), database=DatabaseFacts(connector=connector)
        )
        assert plan.shape.exact_names is scheme.startswith("postgresql")
    assert database_connector(None) == ""
    # The records tell it themselves.
    written = _written_by(_written("oracle", {"id": 1, "name": "a"}))
    assert not debezium_json_plan(
        T, written, database=DatabaseFacts(connector="postgresql")
    ).shape.exact_names


@pytest.mark.parametrize(("name", "exact"), [("postgresql", True), ("mysql", False), ("sqlserver", False)])
def test_avro_schemas_tell_the_connector(name: str, exact: bool) -> None:
    texts = {1: _avro_envelope(name, "name")}
    assert (
        debezium_avro_plan(T, SubjectSchemas({}, texts), PlanSettings(keys=("id",))).shape.exact_names
        is exact
    )
    if exact:
        with pytest.raises(ConfigError, match=r"keys: public\.people has no column Id, but a column id"):
            debezium_avro_plan(T, SubjectSchemas({}, texts), PlanSettings(keys=("Id",)))


@pytest.mark.parametrize(("name", "exact"), [("postgresql", True), ("mysql", False)])
def test_a_later_schema_with_a_name_of_another_case_has_another_column(name: str, exact: bool) -> None:
    texts = {1: _avro_envelope(name, "name"), 2: _avro_envelope(name, "Name")}
    plan = debezium_avro_plan(T, SubjectSchemas({}, texts), PlanSettings(keys=("id",)))
    assert [one.name for one in plan.shape.columns] == (["id", "name", "Name"] if exact else ["id", "name"])
    assert plan.gone == ({"name"} if exact else frozenset())


def test_a_schema_in_which_two_columns_are_one_field_is_refused() -> None:
    texts = {1: _avro_envelope("postgresql", "a_b"), 2: _avro_envelope("postgresql", "a_b", "a_b")}
    plan = debezium_avro_plan(T, SubjectSchemas({}, texts), PlanSettings(keys=("id",)))
    assert isinstance(plan.decoder, DebeziumAvroDecoder)
    assert "the field 'a_b' twice" in plan.decoder.schemas.values.refused[2]
    assert [one.name for one in plan.shape.columns] == ["id", "a_b"]


def _avro_envelope(name: str, *columns: str) -> str:
    fields: list[dict[str, Any]] = [{"name": one, "type": ["null", "string"]} for one in columns]
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}, *fields]}
    source = {
        "type": "record",
        "name": "Source",
        "namespace": f"io.debezium.connector.{name}",
        "fields": [{"name": "connector", "type": "string"}],
        "connect.name": f"io.debezium.connector.{name}.Source",
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
        ],
    }
    return json.dumps(envelope)


def test_a_key_of_another_case_is_refused_with_both_spellings() -> None:
    check_spelling("keys", "name", ONE)
    check_spelling("keys", "NAME", _shape("name", exact=False))
    with pytest.raises(ConfigError, match=r"keys.*no column NAME, but a column name.*use this spelling"):
        check_spelling("keys", "NAME", ONE)


# A topic read from its beginning


def _config(**settings: Any) -> Config:
    return right(
        {
            "pipeline": "shop",
            "source": {
                "brokers": "127.0.0.1:9",
                "protocol": "debezium-json",
                "topics": "app.{schema}.{table}",
                "debezium": {"untyped-columns": "text"},
            },
            "target": {"type": "delta", "path": "/unused"},
            "tables": [{"name": str(T), **settings}],
        }
    )


def _planned(folder: Path, messages: Sequence[Message], **settings: Any) -> list[str]:
    """The target's columns in the plan of a worker that was just started."""

    def fetch(wanted: FetchRange) -> Iterator[pa.RecordBatch]:
        yield as_records(messages[wanted.start : wanted.end])

    around = replace(
        worker_context(_config(**settings), cast("Any", None), folder), source=KafkaSource(fetch)
    )
    decoding = open_decoding(decoding_parts(around), TOPIC, T)
    decoding.prepare(TopicOffsets(TOPIC, "an id", {0: PartitionOffsets(0, len(messages))}))
    return [column.name for column in decoding.columns().shape.columns]


OLD: Final = _message("postgresql", {"id": 1, "name": "a"})
NEW: Final = _message("postgresql", {"id": 2, "name": "a", "Name": "B"}, at=1)


@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({"except_column_list": ["Name"]}, ["id", "name"]),
        ({"rename": {"Name": "name_upper"}}, ["id", "name", "name_upper"]),
        ({"rename": {"name": "lower", "Name": "upper"}}, ["id", "lower", "upper"]),
        ({"columns": ["id", "name", "Name"]}, ["id", "name", "Name"]),
    ],
)
def test_a_load_from_the_beginning_reads_settings_as_the_second_day_does(
    tmp_path: Path, settings: dict[str, Any], columns: list[str]
) -> None:
    """The first writer of the topic does not have the column ``Name`` yet."""
    for number, messages in enumerate(([OLD, NEW], [NEW])):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert sorted(_planned(folder, messages, **settings)) == sorted(columns)


def test_a_name_that_no_row_has_yet_is_refused_with_both_spellings(tmp_path: Path) -> None:
    for number, settings in enumerate(({"except_column_list": ["Name"]}, {"keys": ["ID"]})):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ConfigError, match=r"has no column (Name|ID), but a column (name|id)"):
            _planned(folder, [OLD], **settings)


def test_the_config_leaves_it_to_the_table_whether_two_spellings_are_two_columns() -> None:
    settings = {"columns": ["id", "name", "Name"], "rename": {"name": "a", "Name": "b"}}
    assert _config(**settings).tables[0].columns == ("id", "name", "Name")
    found = wrong(changed(CANAL_JSON, defaults=settings))
    assert {name: problem.reason for name, problem in found.items()} == {
        "defaults.columns": "name is listed twice",
        "defaults.rename": "name is renamed twice (case is ignored)",
    }
