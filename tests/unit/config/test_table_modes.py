"""``mode`` in a config: taken where the target has it, refused by name elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.columns import ID
from tests.contracts.targets_bed import shape
from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right, wrong
from tidesink.config.fields import TableMode
from tidesink.errors import SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId
from tidesink.sinks.laws.modes import FROM_COLUMN, READ_COLUMN, TO_COLUMN, kept_shape, names_of


def test_rows_are_kept_as_at_the_source_where_nothing_is_said() -> None:
    assert right(FLAT_AVRO).defaults.mode == "upsert"


@pytest.mark.parametrize("mode", ["append", "history"])
def test_a_target_without_the_mode_refuses_it(mode: TableMode) -> None:
    config = changed(FLAT_AVRO, target={"type": "http", "url": "http://127.0.0.1:1/"}, defaults__mode=mode)
    assert "does not support mode" in wrong(config)["defaults.mode"].reason


DATED = changed(FLAT_AVRO, source__enable_tidb_extension=True)


@pytest.mark.parametrize(("number", "mode"), [(1, "upsert"), (2, "history")])
def test_databricks_numbers_are_names_of_modes(number: int, mode: str) -> None:
    config = right(changed(DATED, defaults={"stored_as_scd_type": number}))
    assert config.table_config(TableId("a", "b")).mode == mode


def test_a_tables_own_word_comes_before_the_defaults() -> None:
    tables = [{"name": "a.b", "mode": "soft-delete"}, {"name": "a.c", "stored_as_scd_type": 1}]
    config = right(changed(DATED, defaults={"mode": "history"}, tables=tables))
    found = [config.table_config(TableId("a", name)) for name in "bcd"]
    assert [(one.mode, one.deletes) for one in found] == [
        ("upsert", "soft"),
        ("upsert", "hard"),
        ("history", "hard"),
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"mode": "upsert", "stored_as_scd_type": 2},
        {"mode": "append", "stored_as_scd_type": 1},
        {"mode": "soft-delete", "deletes": "hard"},
        {"mode": "soft-delete", "stored_as_scd_type": 2},
    ],
)
def test_words_that_contradict_each_other_are_refused(said: dict[str, Any]) -> None:
    for config in (changed(DATED, defaults=said), changed(DATED, tables=[{"name": "a.b", **said}])):
        (problem,) = wrong(config).values()
        assert "remove one" in problem.reason + problem.remedy


@pytest.mark.parametrize(
    ("config", "field", "reason"),
    [
        (changed(FLAT_AVRO, defaults__mode="history"), "defaults.mode", "enable-tidb-extension=true"),
        (changed(CANAL_JSON, tables=[{"match": "a.*", "mode": "history"}]), "tables[0].mode", "commit_ts"),
        (
            changed(FLAT_AVRO, source__protocol="debezium-avro", defaults__mode="history"),
            "defaults.mode",
            "Debezium",
        ),
        (
            changed(DATED, defaults={"mode": "history", "sequence_by": "kafka"}),
            "defaults.sequence_by",
            "changes by commit_ts",
        ),
        (
            changed(DATED, defaults={"mode": "history", "deletes": "soft"}),
            "defaults.deletes",
            "ends a version",
        ),
        (
            changed(DATED, tables=[{"name": "a.b", "history": {"current": "now"}}]),
            "tables[0].history",
            "no table has mode: history",
        ),
        (
            changed(DATED, defaults={"mode": "history", "history": {"current": "Valid_From"}}),
            "defaults.history",
            "the same name",
        ),
    ],
)
def test_a_history_without_commit_ts_or_with_settings_that_do_nothing_is_refused(
    config: dict[str, Any], field: str, reason: str
) -> None:
    assert reason in wrong(config)[field].reason


def test_a_history_goes_with_order_by_the_source_and_names_of_its_own() -> None:
    said = {"sequence_by": "source", "stored_as_scd_type": 2, "history": {"valid-from": "since"}}
    settings = right(changed(DATED, defaults=said)).table_config(TableId("a", "b"))
    names = names_of(settings)
    assert names == ("since", "valid_to", "current")


def test_a_history_takes_no_column_of_the_sources_for_its_own() -> None:
    settings = right(changed(DATED, defaults__mode="history")).table_config(TableId("a", "b"))
    taken = shape(ID, Column("VALID_TO", ColumnType("date")))
    with pytest.raises(SchemaRefusedError, match="valid_to"):
        kept_shape(taken, settings)
    found = kept_shape(shape(), settings)
    assert [column.name for column in found.columns] == [
        "id", FROM_COLUMN, TO_COLUMN, "valid_from", "valid_to", "current", READ_COLUMN, "name", "amount",
    ]  # fmt: skip
    assert found.keys == ("id", FROM_COLUMN)


def test_true_is_no_scd_type() -> None:
    """For Python it is 1."""
    found = wrong(changed(DATED, defaults={"stored_as_scd_type": True}))
    assert found["defaults.stored_as_scd_type"].remedy == "must be 1 or 2"
