"""What types the columns of debezium-json's records without schemas, and which tables wait for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records
from tests.spark.decoded import decode_here
from tests.unit.config.samples import CANAL_JSON, changed, right, wrong
from tests.unit.sinks.worker.bed import worker_context as worker_surroundings
from tests.unit.sinks.worker.test_run import _Looks
from tests.worker_contexts import worker_context
from tidesink.cli.table_schemas import SampledRecords, SampledTopic
from tidesink.config import Config
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError
from tidesink.events import Message, TableId, TableSchema
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.decode.database_types import DatabaseColumns
from tidesink.sinks.decode.debezium_json import untyped_refusal
from tidesink.sinks.decode.record_types import RecordTypes
from tidesink.sinks.decode.schema_source import Missed
from tidesink.sinks.decode.writer_schemas import DebeziumJsonDecoding
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.counts import BatchSummary, UnplannedSchemas
from tidesink.sinks.runtime.shared_reads import Topics
from tidesink.sinks.state.progress import StateStore, TableStatus
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.sinks.worker.open_table import decoding_parts
from tidesink.sinks.worker.run import Worker

Json = dict[str, Any]
T: Final = TableId("shop", "orders")
TOPIC: Final = "app.shop.orders"
# 13.50 as the connector writes a DECIMAL(10,2), and 2025-11-24 16:00:01.123456 as it writes a DATETIME(6).
TOTAL: Final = base64.b64encode((1350).to_bytes(2, "big")).decode()
ROW: Final = {"id": 1, "total": TOTAL, "at": 1764000001123456}
READ: Final = {"id": 1, "total": "13.50", "at": "2025-11-24 16:00:01.123456"}
ORDERS: Final = "CREATE TABLE orders (id int PRIMARY KEY, total decimal(10,2), at datetime(6))"
KINDS: Final[dict[str, Json]] = {
    "id": {"type": "int32"},
    "total": {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    },
    "at": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
}


def _with(column: str, create: str = ORDERS) -> str:
    """The table with one more column."""
    return f"{create.removesuffix(')')}, {column})"


def _bare(row: Json, *, at: int = 0, **source: str) -> Message:
    """A row as it comes without schemas."""
    return _message(_envelope(row, **source), {"id": row["id"]}, at)


def _typed(row: Json, *, at: int = 0) -> Message:
    """A row with its schema."""
    image = {"type": "struct", "optional": True, "fields": [{"field": one, **KINDS[one]} for one in row]}
    source = {"type": "struct", "fields": [{"field": one, "type": "string"} for one in _source()]}
    parts: dict[str, Json] = {"before": image, "after": image, "source": source, "op": {"type": "string"}}
    schema = {"type": "struct", "fields": [{**kind, "field": name} for name, kind in parts.items()]}
    key = {"type": "struct", "fields": [{"field": "id", "type": "int32"}]}
    value = {"schema": schema, "payload": _envelope(row)}
    return _message(value, {"schema": key, "payload": {"id": row["id"]}}, at)


def _source(**more: str) -> Json:
    return {"connector": "mysql", "db": T.schema, "table": T.name, **more}


def _envelope(row: Json, **source: str) -> Json:
    return {"before": None, "after": row, "source": _source(**source), "op": "c"}


def _message(value: Json, key: Json, at: int) -> Message:
    key_bytes, value_bytes = (json.dumps(one, separators=(",", ":")).encode() for one in (key, value))
    return Message(TOPIC, 0, at, key_bytes, value_bytes, 1000 + at)


class _Database:
    """The source's table, and how often it was asked for."""

    def __init__(self, create: str | None) -> None:
        self.create = create
        self.asked = 0

    def __call__(self, table: TableId) -> TableSchema | None:
        assert table == T
        self.asked += 1
        if self.create is None:
            return None
        definitions = TableDefinitions()
        definitions.apply(self.create, T.schema)
        return definitions.get(T)


class _Table:
    """A table of a worker that was just started, over a topic's records."""

    def __init__(
        self,
        folder: Path,
        *messages: Message,
        database: _Database | None = None,
        definition: str | None = None,
        untyped: str = "refuse",
        excluded: Sequence[str] = (),
    ) -> None:
        config = _config(definition, untyped, excluded)
        self._messages = [replace(one, offset=at, timestamp=1000 + at) for at, one in enumerate(messages)]
        around = worker_context(config, cast("Any", None), folder)
        self.store: StateStore = around.store
        self.decoding = DebeziumJsonDecoding(
            decoding_parts(replace(around, source=KafkaSource(self._fetch))), TOPIC, T
        )
        if database is not None:
            stores_text = untyped == "text"
            columns = DatabaseColumns("shop", T, self.store, database, was_text=stores_text)
            declared = config.definitions().get(T)
            self.decoding._types = RecordTypes(TOPIC, T, declared, columns, stores_text=stores_text)

    def _fetch(self, wanted: Any) -> Iterator[pa.RecordBatch]:
        yield as_records(self._messages[wanted.start : wanted.end])

    @property
    def found(self) -> TopicOffsets:
        return TopicOffsets(TOPIC, "an id", {0: PartitionOffsets(0, len(self._messages))})

    def opened(self) -> _Table:
        self.decoding.prepare(self.found)
        return self

    def learn(self, *messages: Message) -> bool:
        """Decode records as a batch does, and take what they have that the plan lacks."""
        rows = decode_here(self.decoding.columns(), as_records(messages))
        texts = tuple(dict.fromkeys(text for row in rows for text in row.raw["_fields"] or ()))
        assert texts
        summary = BatchSummary(unplanned=UnplannedSchemas(columns=texts))
        return self.decoding.learn(Missed(summary, (), self.found))

    def read(self, *messages: Message) -> list[Mapping[str, Any]]:
        rows = decode_here(self.decoding.columns(), as_records(messages))
        assert {row.kind for row in rows} == {"upsert"}, [row.raw for row in rows]
        return [{name: _text(one) for name, one in row.after.items()} for row in rows if row.after]

    @property
    def types(self) -> dict[str, str]:
        return {column.name: column.spark for column in self.decoding.columns().shape.columns}

    @property
    def untyped(self) -> list[str]:
        """The columns that a warning calls text."""
        texts = [text for text in self.decoding.warnings if "kept as text" in text]
        return [text.removeprefix("column ").partition(":")[0] for text in texts]


def _text(value: Any) -> Any:
    return value if isinstance(value, int) or value is None else str(value)


def _config(definition: str | None = None, untyped: str = "refuse", excluded: Sequence[str] = ()) -> Config:
    table = {"name": str(T), "except_column_list": [*excluded]}
    table |= {} if definition is None else {"definition": definition}
    return right(
        {
            "pipeline": "shop",
            "source": {
                "brokers": "127.0.0.1:9",
                "protocol": "debezium-json",
                "topics": "app.{schema}.{table}",
                "debezium": {"untyped-columns": untyped},
            },
            "target": {"type": "delta", "path": "/unused"},
            "tables": [table],
        }
    )


TYPES: Final = {"id": "int", "total": "decimal(10,2)", "at": "timestamp_ntz"}
TEXTS: Final = dict.fromkeys(ROW, "string")


def test_a_table_waits_whose_columns_nothing_types(tmp_path: Path) -> None:
    table = _Table(tmp_path, _bare(ROW))
    with pytest.raises(ConfigError) as caught:
        table.opened()
    message = caught.value.message
    assert f"topic {TOPIC} have no schemas" in message
    assert "columns 'id', 'total' and 1 more" in message
    for remedy in (
        "tables: [{name: shop.orders, definition: CREATE TABLE …}]",
        "set source.database",
        "value.converter.schemas.enable=true",
        "source.debezium.untyped-columns: text",
    ):
        assert remedy in message
    assert TOTAL not in message


@pytest.mark.parametrize(
    ("names", "asked", "words"),
    [
        (("a",), False, "types of column 'a' are unknown: "),
        (("a", "b"), False, "types of columns 'a' and 'b' are unknown: "),
        (("a", "b", "c"), True, "types of columns 'a', 'b' and 1 more are unknown: "),
    ],
)
def test_the_refusal_names_columns_and_what_was_asked(names: Sequence[str], asked: bool, words: str) -> None:
    message = untyped_refusal(TOPIC, T, names, asked=asked).message
    assert words in message
    assert ("The source database has no table shop.orders." in message) is asked
    assert ("set source.database" in message) is not asked


def test_a_column_that_the_target_does_not_hold_needs_no_type(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="types of column 'id' are unknown: "):
        _Table(tmp_path, _bare(ROW), excluded=["total", "at", "id"]).opened()
    table = _Table(tmp_path, _bare(ROW), excluded=["total", "at"], untyped="text").opened()
    assert table.untyped == ["id"]


def test_the_config_may_accept_text(tmp_path: Path) -> None:
    table = _Table(tmp_path, _bare(ROW), untyped="text").opened()
    assert table.types == TEXTS
    assert table.untyped == [*ROW]
    assert table.read(_bare(ROW)) == [{name: str(one) for name, one in ROW.items()}]


def test_a_definition_gives_types_and_what_it_lacks_is_text(tmp_path: Path) -> None:
    table = _Table(tmp_path, _bare({**ROW, "note": "n"}), definition=ORDERS).opened()
    assert table.types == {**TYPES, "note": "string"}
    assert table.untyped == ["note"]
    assert table.read(_bare({**ROW, "note": "n"})) == [{**READ, "note": "n"}]


@pytest.mark.parametrize("untyped", ["refuse", "text"])
def test_the_database_gives_types_as_a_definition_does(tmp_path: Path, untyped: str) -> None:
    database = _Database(_with("unsent int"))
    table = _Table(tmp_path, _bare(ROW), database=database, untyped=untyped).opened()
    assert table.types == TYPES
    assert table.untyped == []
    assert table.read(_bare(ROW)) == [READ]
    assert database.asked == 1


def test_a_restart_plans_the_same_whatever_the_database_says_by_then(tmp_path: Path) -> None:
    _Table(tmp_path, _bare(ROW), database=_Database(ORDERS)).opened()
    for create in (ORDERS.replace("10,2", "12,4"), None):
        database = _Database(create)
        table = _Table(tmp_path, _bare(ROW), database=database).opened()
        assert table.types == TYPES
        assert table.read(_bare(ROW)) == [READ]
        assert database.asked == 0
    # And where it is in the config no more.
    assert _Table(tmp_path, _bare(ROW)).opened().types == TYPES


def test_a_column_that_came_later_is_asked_for_once_more(tmp_path: Path) -> None:
    database = _Database(ORDERS)
    table = _Table(tmp_path, _bare(ROW), database=database).opened()
    database.create = _with("note varchar(9)", ORDERS.replace("10,2", "12,4"))
    later = {**ROW, "note": "n"}
    assert table.learn(_bare(later))
    assert table.types == {**TYPES, "note": "string"}
    assert (table.untyped, database.asked) == ([], 2)
    assert table.read(_bare(later), _bare(ROW)) == [{**READ, "note": "n"}, {**READ, "note": None}]
    again = _Table(tmp_path, _bare(ROW), _bare(later), database=database).opened()
    assert again.learn(_bare(later))
    assert (again.types, database.asked) == (table.types, 2)


def test_a_column_that_the_table_does_not_have_is_text(tmp_path: Path) -> None:
    """It was dropped, or the connector adds it."""
    database = _Database(ORDERS)
    for _ in range(2):
        table = _Table(tmp_path, _bare({**ROW, "gone": "x"}), database=database).opened()
        assert table.types == {**TYPES, "gone": "string"}
        assert table.untyped == ["gone"]
    assert database.asked == 1


def test_a_table_that_is_not_in_the_database_waits(tmp_path: Path) -> None:
    database = _Database(None)
    table = _Table(tmp_path, _bare(ROW), database=database)
    with pytest.raises(ConfigError, match=r"The source database has no table shop\.orders"):
        table.opened()
    database.create = ORDERS
    assert table.opened().types == TYPES
    # A new column of a table that was dropped since: what is known stays.
    database.create = None
    for _ in range(2):
        with pytest.raises(ConfigError, match="types of column 'note'"):
            table.learn(_bare({**ROW, "note": "n"}))
    assert table.types == TYPES


def test_a_definition_is_completed_by_the_database(tmp_path: Path) -> None:
    database = _Database(ORDERS)
    definition = "CREATE TABLE orders (id int PRIMARY KEY, total decimal(12,2))"
    table = _Table(tmp_path, _bare(ROW), database=database, definition=definition).opened()
    assert table.types == {**TYPES, "total": "decimal(12,2)"}
    assert table.untyped == []
    assert table.read(_bare(ROW)) == [READ]


def test_schemas_that_came_later_type_the_earlier_records(tmp_path: Path) -> None:
    """So that schemas.enable=true is a remedy while the earlier records are in the topic."""
    table = _Table(tmp_path, _bare(ROW), _typed(ROW)).opened()
    assert table.types == TYPES
    assert table.untyped == []
    assert table.read(_bare(ROW), _typed(ROW)) == [READ, READ]


def test_a_column_of_records_without_schemas_beside_others_waits(tmp_path: Path) -> None:
    table = _Table(tmp_path, _typed(ROW), _bare({**ROW, "note": "n"})).opened()
    assert table.read(_bare(ROW)) == [READ]
    with pytest.raises(ConfigError, match="types of column 'note'"):
        table.learn(_bare({**ROW, "note": "n"}))
    database = _Database(_with("note text", ORDERS.replace("10,2", "20,2")))
    table = _Table(tmp_path, _typed(ROW), database=database).opened()
    assert database.asked == 0
    assert table.learn(_bare({**ROW, "note": "n"}))
    # What the schemas type stays as they type it.
    assert table.types == {**TYPES, "note": "string"}
    assert table.untyped == []


def test_text_that_was_applied_stays_text_when_a_database_comes(tmp_path: Path) -> None:
    table = _Table(tmp_path, _bare(ROW), untyped="text").opened()
    table.store.save_status(TableStatus("shop", T, "RUNNING", batch=3, epoch=1))
    database = _Database(_with("note int"))
    table = _Table(tmp_path, _bare(ROW), database=database, untyped="text").opened()
    assert (table.types, database.asked) == (TEXTS, 0)
    assert table.learn(_bare({**ROW, "note": 7}))
    assert table.types == {**TEXTS, "note": "int"}


def test_ticdcs_rows_without_schemas_wait_too(tmp_path: Path) -> None:
    """debezium-disable-schema leaves nothing in them that names a type."""
    wrapped = {"payload": _envelope(ROW, connector="TiCDC", commit_ts=cast("Any", 470609150731354115))}
    with pytest.raises(ConfigError, match="remove debezium-disable-schema from"):
        _Table(tmp_path, _message(wrapped, {"payload": {"id": 1}}, 0)).opened()


def test_documents_are_typed_without_schemas(tmp_path: Path) -> None:
    source = {"connector": "mongodb", "collection": T.name}
    value = {**_envelope({}, **source), "after": '{"_id": 1}'}
    table = _Table(tmp_path, _message(value, {"id": "1"}, 0)).opened()
    assert table.types == {"id": "string", "document": "string"}
    assert table.untyped == []


@pytest.mark.parametrize(
    ("messages", "settings", "types_from", "untyped"),
    [
        ([_typed(ROW)], {}, "records", ()),
        ([_typed(ROW), _bare(ROW)], {}, "records", ()),
        ([_bare(ROW)], {"definition": ORDERS}, "definition", ()),
        ([_bare(ROW)], {"untyped": "text"}, "nothing", (*ROW,)),
        ([_bare({**ROW, "note": "n"})], {"definition": ORDERS}, "definition", ("note",)),
    ],
)
def test_a_plan_shows_what_gives_the_types(
    messages: list[Message], settings: dict[str, str], types_from: str, untyped: tuple[str, ...]
) -> None:
    records = SampledRecords(TOPIC, (replace(one, offset=at) for at, one in enumerate(messages)))
    found = SampledTopic(_config(**settings), records).open(T)
    assert found.types_from == types_from
    assert [text.partition(":")[0] for text in found.warnings] == [f"column {name}" for name in untyped]
    typed = {column.name: column.type.name for column in found.shape.columns if column.name not in untyped}
    assert typed.get("total") in (None, "decimal")


def test_the_setting_has_two_words() -> None:
    json_source = changed(CANAL_JSON, source__protocol="debezium-json")
    found = wrong(changed(json_source, source__debezium={"untyped-columns": "guess"}))
    assert "source.debezium.untyped-columns" in found


def test_run_and_status_say_why_a_table_waits(tmp_path: Path) -> None:
    """By a worker without servers: no more of it is reached than the table's columns."""
    store = SqlStateStore(str(tmp_path / "state.db"))
    settings = {"source__topics": ["shop_orders"], "target": {"type": "http", "url": "http://127.0.0.1:1/x"}}
    around = worker_surroundings(
        right(changed(CANAL_JSON, source__protocol="debezium-json", **settings)), store=store
    )

    def fetch(wanted: Any) -> Iterator[pa.RecordBatch]:
        yield as_records([replace(_bare(ROW), topic=wanted.topic)] if wanted.start == 0 else [])

    source = KafkaSource(fetch)
    topics = Topics(around.config.pipeline, source, store, ask=lambda: cast("Any", None))
    around = replace(around, source=source, topics=topics)
    (table,) = Worker(around, until="drained", offsets=_Looks(T)).run().tables
    assert (table.table, table.state) == (T, "FAILING")
    expected = untyped_refusal("shop_orders", T, [*ROW], asked=False).message
    assert expected in str(table.error)
    status = store.status_of(around.config.pipeline, T)
    store.close()
    assert status is not None
    assert (status.state, status.error) == ("FAILING", table.error)
