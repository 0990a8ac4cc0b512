"""The types that a plan shows are those that the target's own catalog has of the table then."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import pytest

from tests.columns import ID
from tests.contracts.sql_beds import target_of
from tests.contracts.targets_bed import TABLE, Bed, shape
from tests.contracts.test_targets_types import cases
from tidesink.config.targets import IcebergSettings, MysqlSettings, PostgresSettings
from tidesink.sinks.targets import TARGETS
from tidesink.sinks.targets.iceberg.jvm import JvmTable
from tidesink.sinks.targets.iceberg.table import IcebergTarget

pytestmark = pytest.mark.spark
WHOLE = shape(ID, *(column for column, _ in cases()))


SETTINGS: Final = {
    "iceberg": IcebergSettings(type="iceberg", catalog="lake"),
    "mysql": MysqlSettings(type="mysql", url="mysql://db", user="tide"),
    "postgres": PostgresSettings(type="postgres", url="postgresql://db/shop", user="tide"),
}


def planned(bed: Bed) -> dict[str, str]:
    """Column to type, as the plan has them."""
    foresight = import_module(TARGETS[bed.name]).PREFLIGHT
    return {column.name: foresight.column_type(SETTINGS[bed.name], column) for column in WHOLE.columns}


@pytest.mark.servers
def test_of_a_database(sql: Bed) -> None:
    target = target_of(sql)
    target.open_table(WHOLE, pipeline="shop")
    with target.connections.transaction("test", writes=False) as cursor:
        found = target.connections.dialect.tables.present(cursor, target.place_of(TABLE))
    # MariaDB's JSON is a text that is checked.
    json = {"mysql": "longtext", "postgres": "json"}[sql.name]
    assert found == {name: json if word == "json" else word for name, word in planned(sql).items()}


def test_of_iceberg(iceberg: Bed) -> None:
    assert isinstance(iceberg.target, IcebergTarget)
    assert iceberg.spark is not None
    iceberg.target.open_table(WHOLE, pipeline="shop")
    state = JvmTable(iceberg.spark, iceberg.target.location_of(TABLE)).state()
    found = {str(field.name()): str(field.type().toString()) for field in state.metadata.schema().columns()}
    assert {name: word.replace(", ", ",") for name, word in found.items()} == planned(iceberg)
