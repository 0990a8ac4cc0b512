"""The columns of a table in mode ``append``, and what a config may say of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import AMOUNT, NAME, shape
from tests.unit.config.samples import FLAT_AVRO, changed, right, wrong
from tidesink.errors import SchemaRefusedError
from tidesink.events import Column, ColumnType, Op, TableId
from tidesink.sinks.laws.modes import (
    COMMIT_TS,
    INDEX,
    OFFSET,
    OP,
    PARTITION,
    WORDS,
    kept_shape,
    log_shape,
    row_shape,
)
from tidesink.sinks.targets.column_changes import plan_evolution
from tidesink.typemap.target_schema import MetadataKind, beside_log, default_name, metadata_columns


def test_a_row_of_the_log_is_named_by_its_place_and_every_column_may_be_null() -> None:
    found = log_shape(shape())
    assert found.keys == (PARTITION, OFFSET, INDEX)
    assert [column.name for column in found.key_columns] == [PARTITION, OFFSET, INDEX]
    assert [column.name for column in found.columns][-3:] == ["id", "name", "amount"]
    assert log_shape(shape(NAME, AMOUNT)).keys == found.keys


def test_every_event_has_a_word() -> None:
    assert {*WORDS} == {op.value for op in Op}


def test_a_source_column_of_such_a_name_is_refused() -> None:
    with pytest.raises(SchemaRefusedError, match=OFFSET):
        log_shape(shape(ID, Column(OFFSET.upper(), ColumnType("int"))))


def test_a_metadata_column_of_such_a_name_is_refused() -> None:
    topic = metadata_columns({"topic": INDEX})
    with pytest.raises(SchemaRefusedError, match="choose another name under `metadata`"):
        log_shape(replace(shape(), columns=(*shape().columns, *topic)))


def test_the_logs_own_columns_are_called_as_metadata_is() -> None:
    kinds: tuple[MetadataKind, ...] = ("op", "commit_ts", "partition", "offset")
    assert [default_name(kind) for kind in kinds] == [OP, COMMIT_TS, PARTITION, OFFSET]
    assert beside_log({kind: default_name(kind) for kind in kinds}) == {}


def test_a_log_evolves_as_the_table_does() -> None:
    present = {column.name: column.spark for column in log_shape(shape()).columns}
    late = Column("late", ColumnType("int"), default="3")
    wide = log_shape(shape(ID, NAME, Column("amount", ColumnType("bigint")), late))
    plan = plan_evolution(present, wide)
    assert [column.name for column in plan.added] == ["late"]
    assert plan.widened == {"amount": "bigint"}


def test_a_table_in_append_mode_has_no_settings_of_keys() -> None:
    config = right(
        changed(
            FLAT_AVRO,
            defaults__deletes="soft",
            tables=[{"name": "shop.log", "mode": "append"}, {"name": "shop.kept"}],
        )
    )
    log, kept = (config.table_config(TableId("shop", name)) for name in ("log", "kept"))
    assert (log.mode, log.deletes, log.sequence_by) == ("append", "hard", "kafka")
    assert kept.deletes == "soft"
    assert kept_shape(shape(), log) == row_shape(shape(), log) == log_shape(shape())
    assert kept_shape(log_shape(shape()), log) == log_shape(shape())
    assert kept_shape(shape(), kept) == shape()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"deletes": "soft"}, "deletes"),
        ({"sequence_by": "source"}, "sequence_by"),
        ({"tombstone-retention": "3d"}, "tombstone-retention"),
        ({"filter": "id > 3"}, "filter"),
    ],
)
def test_a_setting_without_effect_in_append_mode_is_an_error(said: dict[str, str], field: str) -> None:
    entry = {"name": "shop.log", "mode": "append", **said}
    refused = wrong(changed(FLAT_AVRO, tables=[entry]))
    assert "append" in refused[f"tables[0].{field}"].reason


def test_defaults_of_append_mode_have_none_either() -> None:
    refused = wrong(changed(FLAT_AVRO, defaults__mode="append", defaults__deletes="soft"))
    assert "mode append" in refused["defaults.deletes"].reason
