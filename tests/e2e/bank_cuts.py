"""A bank at whose cuts all the money is there: its changefeed, whose watermarks lag, and its workers."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.e2e.bank import SCHEMAS, Bank, Change, Feed, key_of
from tests.e2e.bank_places import Way, bank_config
from tests.e2e.forked_worker import ForkedWorker
from tests.e2e.places import place_of
from tests.e2e.replay import Servers
from tidesink.codecs.base import CodecOptions
from tidesink.codecs.options import FlatAvroOptions
from tidesink.config import Config, load_config
from tidesink.events import Op

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The new architecture's flat-avro: deletes say there when they were committed.
_OPTIONS: Final = {
    "canal-json": CodecOptions(enable_tidb_extension=True),
    "flat-avro": FlatAvroOptions(enable_tidb_extension=True, avro_enable_watermark=True, producer="new"),
}
# Transactions are so many ms apart, and cuts a second: some transactions a cut.
_STEP_MS: Final = 150
WORK: Final = 12
Rows = dict[tuple[int, ...], dict[str, Any]]


class BankRun:
    """A bank, its changefeed with watermarks, and workers that publish cuts."""

    def __init__(
        self, spark: SparkSession, request: pytest.FixtureRequest, folder: Path, servers: Servers
    ) -> None:
        asked = request.node.callspec.params
        kind, protocol = asked["kind"], asked.get("protocol", "canal-json")
        self.seed = random.SystemRandom().randrange(1, 2**31)
        sys.stderr.write(f"seed={self.seed}\n")
        self.rng = random.Random(self.seed)
        place = place_of(kind, request, folder)
        path = bank_config(folder, servers, place, Way(protocol), batch=60)
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["source"]["enable-tidb-extension"] = True
        # In flat-avro topics tidesink follows no DDL.
        self._truncates = protocol == "canal-json"
        if self._truncates:
            settings["defaults"]["schema-changes"] = {"truncate": "apply"}
        else:
            settings["source"]["avro-enable-watermark"] = True
        settings["cuts"] = {"every": "1s"}
        path.write_text(json.dumps(settings), encoding="utf-8")
        self.path = path
        self.config: Config = load_config(path)
        self.spark, self.log = spark, folder / "worker.log"
        self._bank = Bank(self.seed, step_ms=_STEP_MS)
        self._feed = Feed(servers, protocol, _OPTIONS[protocol])
        self._history: list[Change] = []
        self.total = self._bank.total

    def work(self, transactions: int) -> None:
        """Transactions, sent; the watermark comes behind rows that are later, and some are sent again."""
        self._bank.work(transactions)
        if self._truncates:
            self._bank.forget_transfers()
        self._bank.work(3)
        changes = [*self._bank.changes]
        self._bank.changes.clear()
        self._history += changes
        self._feed.send(changes)
        late = {change.commit_ts for change in changes[-6:]}
        self._feed.mark(min(late) - 1)
        if self.rng.random() < 0.5:
            # A new session of the producer, behind a checkpoint before that watermark.
            again = [change for change in self._history if change.commit_ts >= min(late) - (2000 << 18)]
            self._feed.send(again[: len(again) // 2])
            self._feed.send(again)
            self._feed.mark(min(late) - 1)

    def finish(self) -> None:
        """Nobody is killed any more."""
        self.work(WORK)
        assert self.worker().wait() == 0, self.log.read_text(encoding="utf-8")

    def worker(self, failpoint: str | None = None) -> ForkedWorker:
        """A worker that reads all there is, if it lives."""
        return ForkedWorker(self.spark, self.path, self.log, failpoint)

    def rows_at(self, commit_ts: int) -> dict[str, Rows]:
        """The bank's rows as of an instant, by table."""
        rows: dict[str, Rows] = {schema.table.name: {} for schema in SCHEMAS}
        for change in self._history:
            if change.commit_ts > commit_ts:
                break
            table = rows[change.schema.table.name]
            key = key_of(change.schema, change.row) if change.row else ()
            if change.op is Op.TRUNCATE:
                table.clear()
            elif change.op is Op.DELETE:
                table.pop(key, None)
            else:
                table[key] = dict(change.row)
        return rows
