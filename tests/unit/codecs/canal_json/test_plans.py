"""A canal-json table's plan follows its topic's DDL, which is read ahead of the rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.spark.decoded import decode_here
from tests.unit.codecs.canal_json.rows import sent
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import RowChange, RowDdl
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import TableId
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.canal_json_types import CanalJsonDecoding
from tidesink.sinks.decode.schema_source import Missed
from tidesink.sinks.kafka.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.laws.counts import BadRecord, BatchSummary, EventCounts, TopicPartition
from tidesink.typemap.projection import Projection
from tidesink.typemap.target_schema import TargetColumn

T = TableId("s", "t")
BAD = BatchSummary(
    EventCounts(bad=1), bad_records=(BadRecord(TopicPartition("cdc", 1), 0, "ValueOutOfRangeError", "odd"),)
)


class _Ddl:
    """Partition 0 as a list of statements; the offset is the time."""

    def __init__(self, *topic: str) -> None:
        self._topic, self._next = topic, 0
        self._definitions = TableDefinitions()
        self.get, self.dropped_columns = self._definitions.get, self._definitions.dropped_columns

    def warnings(self, _table: TableId, **_more: bool) -> tuple[str, ...]:
        return ()

    def recall(self, _found: TopicOffsets) -> None:
        pass

    def scan(self, _reader: object, found: TopicOffsets) -> bool:
        latest = found.partitions[0].latest
        for at in range(self._next, latest):
            self._definitions.apply(self._topic[at], "s", since=at)
        read, self._next = latest > self._next, max(latest, self._next)
        return read


class _Decoding(CanalJsonDecoding):
    """Whose brokers answer with the end of all there is."""

    ends: int = 0

    def _ends_now(self, _found: TopicOffsets) -> TopicOffsets:
        return _found_at(self.ends)


def _found_at(latest: int) -> TopicOffsets:
    return TopicOffsets("cdc", "id", {0: PartitionOffsets(0, latest), 1: PartitionOffsets(0, 9)})


def _decoding(*topic: str, known: int, sends: CanalJsonOptions | None = None, **more: Any) -> _Decoding:
    """A decoding of a topic with so many DDL events at first; ``sends``: the producer's options."""
    given = {
        "definition": None,
        "keys": None,
        "zero_date": "null",
        "ambiguous_time": "first",
        "time_zone": "UTC",
        "mode": "upsert",
        "projection": Projection(),
    }
    settings = SimpleNamespace(**{**given, **more})
    around = SimpleNamespace(
        config=SimpleNamespace(
            pipeline="p",
            table_config=lambda _table: settings,
            source=SimpleNamespace(
                options_of=lambda options: sends or options(), opens_up_to=None, database=None
            ),
        ),
        store=None,
        reader=None,
        topics=SimpleNamespace(
            ddl=lambda _topic: _Ddl(*topic),
            tables=lambda _topic: SimpleNamespace(known=lambda: (T,), absent=False),
        ),
    )
    decoding = _Decoding(cast("Any", around), "cdc", T)
    decoding.ends = len(topic)
    decoding.prepare(_found_at(known))
    return decoding


def _column(decoding: CanalJsonDecoding, name: str) -> TargetColumn:
    return decoding.columns().shape.by_name[name]


CREATE = "create table t (id int primary key, e enum('a','b'), n int, d date)"


def test_a_bad_row_may_be_ahead_of_a_ddl_that_came_since_the_brokers_were_asked() -> None:
    """They are asked partition by partition: partition 0 before the DDL, partition 1 after its first row."""
    decoding = _decoding(CREATE, "alter table t modify n bigint", known=1)
    assert _column(decoding, "n").spark == "int"
    assert decoding.learn(Missed(BAD, (), _found_at(1)))
    assert _column(decoding, "n").spark == "bigint"
    assert not decoding.learn(Missed(BAD, (), _found_at(1)))


@pytest.mark.parametrize("gone", ["drop column e, drop column n", "change e f enum('b','a'), drop column n"])
def test_rows_between_a_change_of_type_and_the_drop_are_read_by_the_changed_type(gone: str) -> None:
    alter = "alter table t modify e enum('b','a'), modify n bigint"
    decoding = _decoding(CREATE, alter, f"alter table t {gone}", known=1)
    assert decoding.learn(Missed(BAD, (), _found_at(3)))
    column = _column(decoding, "e")
    assert column.type.members == ("b", "a")
    assert [(was.type.members, was.until) for was in column.earlier] == [(("a", "b"), 1)]
    assert _column(decoding, "n").spark == "bigint"
    assert "e" in decoding.columns().gone


def test_a_dropped_column_whose_type_the_target_cannot_hold_stays_as_it_was() -> None:
    decoding = _decoding(CREATE, "alter table t modify d int", "alter table t drop column d", known=1)
    assert decoding.learn(Missed(BAD, (), _found_at(3)))
    assert _column(decoding, "d").spark == "date"


KEYLESS = "create table t (a int unique, b varchar(5))"
ROW_KEYS = CanalJsonOptions(enable_tidb_extension=True, output_row_key=True)


def _columns(decoding: CanalJsonDecoding) -> tuple[list[str], tuple[str, ...]]:
    shape = decoding.columns().shape
    return [column.name for column in shape.columns], shape.keys


@pytest.mark.parametrize(
    ("create", "more", "columns", "keys"),
    [
        (KEYLESS, {}, ["_tidb_rowid", "_tidb_table_id", "a", "b"], ("_tidb_rowid", "_tidb_table_id")),
        (KEYLESS, {"keys": ("b",)}, ["a", "b"], ("b",)),
        (KEYLESS, {"mode": "append"}, ["a", "b"], ()),
        ("create table t (a int not null unique, b int)", {}, ["a", "b"], ("a",)),
        ("create table t (a int, b int, primary key (b, a))", {}, ["a", "b"], ("a", "b")),
    ],
)
def test_only_a_table_without_a_key_goes_by_its_row_keys(
    create: str, more: dict[str, Any], columns: list[str], keys: tuple[str, ...]
) -> None:
    assert _columns(_decoding(create, known=1, sends=ROW_KEYS, **more)) == (columns, keys)


@pytest.mark.parametrize("sends", [CanalJsonOptions(), CanalJsonOptions(enable_tidb_extension=True)])
def test_a_table_without_a_key_and_row_keys_is_refused_with_every_way_out(sends: CanalJsonOptions) -> None:
    with pytest.raises(ConfigError) as caught:
        _decoding(KEYLESS, known=1, sends=sends)
    said = caught.value.message
    assert all(way in said for way in ("tables: keys", "mode: append", "output-row-key=true"))


def test_a_table_by_row_keys_follows_its_ddl_and_no_other_key() -> None:
    alters = ("alter table t add column c int default 5", "alter table t drop column a")
    decoding = _decoding(KEYLESS, *alters, "alter table t add primary key (b)", known=1, sends=ROW_KEYS)
    assert decoding.warnings == ()
    assert decoding.learn(Missed(BAD, (), _found_at(3)))
    assert _columns(decoding)[0] == ["_tidb_rowid", "_tidb_table_id", "a", "b", "c"]
    assert decoding.columns().gone == {"a"}
    with pytest.raises(SchemaRefusedError, match=r"from \(_tidb_rowid, _tidb_table_id\) to \(b\)"):
        decoding.learn(Missed(BAD, (), _found_at(4)))


def test_ddl_from_before_a_start_tells_columns_and_changes_no_row() -> None:
    decoding = _decoding(CREATE, "alter table t modify n bigint", known=2)
    rows = [
        RowDdl.of(RowChange(T, "truncate", "rows stay"), "truncate table t", moment=at, offset=at)
        for at in (1, 5)
    ]
    cast("Any", decoding)._ddl.row_ddl = lambda _table: tuple(rows)
    assert decoding.row_ddl() == tuple(rows)
    decoding.prepare(_found_at(2), {0: 5, 1: 9})
    assert decoding.row_ddl() == (rows[1],)
    assert _column(decoding, "n").spark == "bigint"


@pytest.mark.parametrize(("sent_as", "label"), [("1", "a"), ("2", "b"), ("0", ""), ("3", None)])
def test_a_number_that_the_definitions_enum_lacks_is_refused_by_name(sent_as: str, label: str | None) -> None:
    """canal-json has no label of it, so there is nothing that could be stored."""
    definitions = TableDefinitions()
    definitions.declare(CREATE, T.schema)
    schema = definitions.get(T)
    assert schema is not None
    row = sent(
        mysqlType={"id": "int", "e": "enum", "n": "int", "d": "date"},
        sqlType={"id": 4, "e": 4, "n": 4, "d": 91},
        data=[{"id": "1", "e": sent_as, "n": None, "d": None}],
    )
    (found,) = decode_here(canal_json_plan(schema), [row])
    if label is None:
        assert found.error == "ValueOutOfRangeError"
        assert found.reason is not None
        assert found.reason.startswith("column 'e': '3' is not a valid enum('a','b')")
    else:
        assert found.after is not None
        assert found.after["e"] == label
