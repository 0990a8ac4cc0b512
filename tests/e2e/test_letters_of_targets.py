"""Dead letters of each target: kept where its config says, and replayed behind what is newer there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contracts.sql_beds import DATABASES
from tests.e2e.places import Place, place_of
from tests.e2e.replay import Servers
from tests.e2e.test_kept_in_databases import letters_of
from tests.e2e.test_replay_letters import NEVER, Shop, counted
from tests.soak import SOAK
from tidesink.change import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]


def _names(place: Place) -> dict[int, str]:
    return {row["id"]: row["name"] for row in place.rows(TableId("shop", "replayed")) or ()}


# test_replay_letters is about Delta.
@pytest.mark.parametrize("kind", ["iceberg", "postgres", pytest.param("mysql", marks=SOAK)])
def test_letters_are_kept_and_a_newer_change_wins_over_a_replayed_one(
    servers: Servers, spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    place = place_of(kind, request, tmp_path)
    letters = {} if kind in DATABASES else {"dead-letters": {"path": "./letters"}}
    shop = Shop(servers, tmp_path, "replayed", target=place.target, **letters)
    shop.put(1, "one")
    shop.put(1, "too late", NEVER)  # 1
    shop.put(2, "lost", NEVER)  # 2: nothing of its row comes later
    shop.put(1, "uno")
    shop.put(3, "gone", NEVER)  # 4
    shop.writer.delete({"id": 3, "name": "gone", "day": "2026-01-01"})
    shop.drain()
    assert (_names(place), letters_of(shop.config)) == ({1: "uno"}, [("ValueOutOfRangeError", 3, 1)])
    shop.with_zero_date("null")
    assert counted(shop.replay()) == (3, 1, 2, 0, 0, 0, 0)
    assert (_names(place), letters_of(shop.config)) == ({1: "uno", 2: "lost"}, [])
    # The worker goes on where it stood.
    shop.put(2, "found")
    (table,) = shop.drain().tables
    assert (table.counters["read"], _names(place)) == (1, {1: "uno", 2: "found"})
