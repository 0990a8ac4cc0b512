"""Settings of the Iceberg target, what its tables are called, and what a snapshot's numbers mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.targets_bed import shape
from tests.unit.config.samples import FLAT_AVRO, right, wrong
from tidesink.config import IcebergSettings
from tidesink.errors import AccountingError, ConfigError, StaleProgressError
from tidesink.events import TableId
from tidesink.sinks.targets.base import ApplyOptions, ReducedBatch
from tidesink.sinks.targets.iceberg.ledger import IcebergEntry, IcebergLedger
from tidesink.sinks.targets.iceberg.merge import counts_beside, result_of
from tidesink.sinks.targets.iceberg.table import place_of, try_target
from tidesink.sinks.targets.lake.tables import table_names

PROPERTIES = {"type": "hadoop", "warehouse": "./warehouse", "token": "s3cr3t", "cache-enabled": False}


def settings(**more: Any) -> IcebergSettings:
    target = {"type": "iceberg", "catalog-properties": PROPERTIES, **more}
    found = right({**FLAT_AVRO, "target": target}).target
    assert isinstance(found, IcebergSettings)
    return found


def test_properties_are_text_and_a_warehouse_is_beside_the_config() -> None:
    found = settings()
    assert found.catalog == "iceberg"
    assert found.catalog_values() == {
        "type": "hadoop",
        "warehouse": "/base/warehouse",
        "token": "s3cr3t",
        "cache-enabled": "false",
    }
    assert "s3cr3t" not in f"{found!r} {found.model_dump_json()}"
    kept = settings(**{"catalog-properties": {"warehouse": "s3://b/w", "uri": "http://c"}})
    assert kept.catalog_values()["warehouse"] == "s3://b/w"


REFUSED = [
    ({"catalog": "spark_catalog"}, "Delta's"),
    ({"catalog": "my-lake"}, "catalog"),
    ({"table": "{table}"}, "use both placeholders"),
    ({"table": "{schema}_{table}"}, "a namespace"),
    ({"table": "{schema}..{table}"}, "a namespace"),
    ({"table": "{schema}.{table}.{other}"}, "placeholders"),
    ({"table": "{schema}.`{table}`"}, "letters"),
]


@pytest.mark.parametrize(("setting", "said"), REFUSED, ids=[str(setting) for setting, _ in REFUSED])
def test_what_would_not_work_is_refused(setting: Mapping[str, str], said: str) -> None:
    problems = wrong({**FLAT_AVRO, "target": {"type": "iceberg", **setting}})
    assert any(said in str(problem) for problem in problems.values())


def test_names_keep_tables_apart() -> None:
    names = [TableId("shop", "a"), TableId("Shop", "a"), TableId("shop", "a.b"), TableId("shop.a", "b")]
    found = {table_names("lake.{schema}.{table}", name) for name in names}
    assert len(found) == len(names)
    assert table_names("lake.{schema}_{table}", TableId("a.b", "c/d")) == ("lake", "a~2eb_c~2fd")
    assert place_of(settings(), TableId("shop", "orders")) == "iceberg.shop.orders"


def test_a_folder_is_tried_and_other_catalogs_are_spark_to_open(tmp_path: Path) -> None:
    folder = {"type": "hadoop", "warehouse": str(tmp_path)}
    assert "can be written to" in try_target(settings(**{"catalog-properties": folder}))
    (tmp_path / "file").write_text("")
    broken = {"type": "hadoop", "warehouse": str(tmp_path / "file")}
    with pytest.raises(ConfigError, match=r"target\.catalog-properties\.warehouse .* Set target\.catalog"):
        try_target(settings(**{"catalog-properties": broken}))
    assert "not checked here" in try_target(settings(**{"catalog-properties": {"type": "rest"}}))


def batch(upserts: int, deletes: int, *, soft: bool = False) -> ReducedBatch:
    return ReducedBatch(shape(), upserts, deletes, how=ApplyOptions(delete_mode="soft" if soft else "hard"))


# upserts, deletes, soft, the summary, rows to delete that were there -> inserted, updated, deleted, absent
COUNTED = [
    (3, 0, False, {"added-records": 3, "added-position-deletes": 1}, None, (2, 1, 0, 0)),
    (0, 3, False, {"added-position-deletes": 2}, None, (0, 0, 2, 1)),
    (3, 2, False, {"added-records": 3, "added-position-deletes": 2}, 1, (2, 1, 1, 1)),
    # A vector of deletes that was there is written again with more in it.
    (
        3,
        2,
        False,
        {"added-records": 3, "added-position-deletes": 9, "removed-position-deletes": 7},
        1,
        (2, 1, 1, 1),
    ),
    (2, 2, True, {"added-records": 3, "added-position-deletes": 2}, 1, (1, 1, 1, 1)),
    # Copy-on-write: seven rows were written again beside.
    (3, 2, False, {"added-records": 10, "deleted-records": 9}, 1, (2, 1, 1, 1)),
    (0, 2, False, {"added-records": 7, "deleted-records": 8}, None, (0, 0, 1, 1)),
    (0, 2, False, {}, None, (0, 0, 0, 2)),
]


@pytest.mark.parametrize(("upserts", "deletes", "soft", "summary", "found", "expected"), COUNTED)
def test_counts_come_from_the_summary(
    upserts: int,
    deletes: int,
    soft: bool,
    summary: Mapping[str, int],
    found: int | None,
    expected: tuple[int, ...],
) -> None:
    one = batch(upserts, deletes, soft=soft)
    assert counts_beside(one) == (found is not None)
    result = result_of(summary, one, found=found, version="7")
    assert (result.inserted, result.updated, result.deleted, result.absent) == expected


WRONG = [
    (3, 0, {"added-records": 2}, None),
    (3, 0, {"added-records": 4}, None),
    (1, 1, {"added-records": 1, "added-position-deletes": 5}, 1),
    (1, 1, {"added-records": 1}, 2),
    (0, 1, {"added-position-deletes": 2}, None),
]


@pytest.mark.parametrize(("upserts", "deletes", "summary", "found"), WRONG)
def test_a_snapshot_that_did_something_else_is_an_error(
    upserts: int, deletes: int, summary: Mapping[str, int], found: int | None
) -> None:
    with pytest.raises(AccountingError, match="The snapshot reports"):
        result_of(summary, batch(upserts, deletes), found=found, version="7")


def test_another_holder_is_named() -> None:
    ledger = IcebergLedger(TableId("shop", "orders"), "shop", "lake.`shop`.`orders`", ("id",))
    first = ledger.claimed(None, snapshot=5)
    assert (first.epoch, first.branch) == (1, "tidesink_1")
    second = ledger.claimed(first, snapshot=6)
    assert (second.epoch, second.snapshot) == (2, 6)
    lost = ledger.lost_to(second)
    assert isinstance(lost, StaleProgressError)
    assert "epoch 2, pipeline 'shop'" in str(lost)
    assert isinstance(second, IcebergEntry)
