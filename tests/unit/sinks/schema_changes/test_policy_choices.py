"""What policies made of changes by themselves, as it is kept: once, and the newest of each table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_target import CAPABILITIES
from tidesink.config.fields import ChangePolicy, SchemaChanges
from tidesink.events import TableId
from tidesink.sinks.schema_changes.decisions import (
    MOST_CHOICES,
    Policies,
    PolicyChoices,
    SchemaChange,
    chosen_of,
    read_choices,
)
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.state.sql_store import SqlStateStore
from tidesink.typemap.render_sql import FoundType

TABLE = TableId("shop", "orders")
ADDED = SchemaChange("add", "label", after="varchar(9)")
DROPPED = SchemaChange("drop", "note", "int", at=str(5000 << 18))


def _truncated(number: int) -> SchemaChange:
    return SchemaChange("truncate", "", "2026-11-26", "TRUNCATE TABLE orders", str(number))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStateStore]:
    found = SqlStateStore(str(tmp_path / "state.db"))
    yield found
    found.close()


def _keep(
    choices: PolicyChoices, batch: int, *chosen: tuple[SchemaChange, ChangePolicy], table: TableId = TABLE
) -> None:
    found = {one[0].digest: one for one in chosen}
    choices.keep(found, Progress(table, "shop", 1, batch, {}))


def _kept(store: SqlStateStore, table: TableId = TABLE) -> list[tuple[str, str, int]]:
    return [(one.change["kind"], one.policy, one.batch) for one in read_choices(store, "shop", table)]


def test_what_each_batch_finds_again_is_kept_once(store: SqlStateStore) -> None:
    """By a worker that is started again, too; a column that is added again is another choice."""
    ignored: tuple[SchemaChange, ChangePolicy] = (DROPPED, "ignore")
    added: tuple[SchemaChange, ChangePolicy] = (ADDED, "apply")
    for _ in range(2):
        choices = PolicyChoices(store)
        # A batch that is tried again.
        for _ in range(2):
            _keep(choices, 7, ignored, added)
        _keep(choices, 8, ignored)
    assert _kept(store) == [("drop", "ignore", 7), ("add", "apply", 7)]
    _keep(choices, 9, added)
    assert _kept(store)[2:] == [("add", "apply", 9)]
    # Another table's very same change is a choice of its own.
    items = TableId("shop", "items")
    assert _kept(store, items) == []
    _keep(choices, 3, ignored, table=items)
    assert _kept(store, items) == [("drop", "ignore", 3)]


def test_the_newest_stay(store: SqlStateStore) -> None:
    choices = PolicyChoices(store)
    for batch in range(MOST_CHOICES + 3):
        _keep(choices, batch, (_truncated(batch), "apply"))
    kept = _kept(store)
    assert (len(kept), kept[0][2], kept[-1][2]) == (MOST_CHOICES, 3, MOST_CHOICES + 2)


def test_a_type_of_the_databases_catalog_is_kept_as_its_text(store: SqlStateStore) -> None:
    widened = SchemaChange("widen", "n", FoundType("int", charset="latin1"), FoundType("bigint"))
    _keep(PolicyChoices(store), 7, (widened, "apply"))
    (kept,) = read_choices(store, "shop", TABLE)
    assert (kept.change["from"], kept.change["to"]) == ("int", "bigint")
    assert type(kept.change["to"]) is str


def test_a_long_statement_is_cut(store: SqlStateStore) -> None:
    change = SchemaChange("unknown", "", "", "SELECT " + "x" * 100_000)
    _keep(PolicyChoices(store), 1, (change, "ignore"))
    ((_, _, _, shown),) = read_choices(store, "shop", TABLE)
    assert (len(shown["statement"]), shown["digest"]) == (1000, change.digest)


def test_what_people_decide_and_what_waits_is_no_choice_of_a_policy() -> None:
    policies = Policies(SchemaChanges(truncate="apply"), {DROPPED.digest: "ignore"}, CAPABILITIES)
    truncated, renamed = _truncated(1), SchemaChange("rename", "a", "a", "b", "1")
    decided = [policies.decide(change) for change in (truncated, DROPPED, renamed, ADDED)]
    assert [one.policy for one in decided] == ["apply", "ignore", "pause", "apply"]
    assert chosen_of(decided) == {truncated.digest: (truncated, "apply"), ADDED.digest: (ADDED, "apply")}
