"""An HTTP endpoint: the rows of a batch as JSON, a slice in each request, at least once.

The executors send, one slice at a time in each task; a key always goes the same way, and a batch is done
before the next begins, so that the changes of a row arrive in order. Rows stand in the same slices when a
batch is sent again, and each slice has the same ``Idempotency-Key``: an endpoint that remembers the keys it
took does nothing twice. After all slices were taken the ledger in the state store (``store_ledger``) says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote, urlsplit

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.schema_registry.auth import safe_url
from tidesink.sinks.progress import Progress
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import Capabilities, DeleteMode, ReducedBatch
from tidesink.sinks.targets.http_requests import Endpoint, Requests
from tidesink.sinks.targets.http_slices import Slices, Stamp
from tidesink.sinks.targets.message_batches import batch_frame, check_kept, check_shape
from tidesink.sinks.targets.message_foreseen import HttpForesight
from tidesink.sinks.targets.message_table import MessageTable
from tidesink.sinks.targets.store_ledger import LedgerEntry, StoreLedger
from tidesink.sinks.targets.task_outcomes import Sent, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config
    from tidesink.config.targets import HttpSettings
    from tidesink.sinks.state_store import StateStore

CAPABILITIES: Final = Capabilities(
    name="http",
    exactly_once=False,
    evolves=True,
    widens=True,
    soft_deletes=False,
    durable=True,
    keeps_rows=False,
)
FORESIGHT: Final = HttpForesight()
_REFUSED: Final = frozenset({401, 403})


def open_target(config: Config, _spark: SparkSession, store: StateStore) -> HttpTarget:
    """The endpoint of a config, with its ledger in the state store."""
    return HttpTarget(cast("HttpSettings", config.target), store)


def place_of(settings: HttpSettings, table: TableId) -> str:
    """A table's URL, without what may be secret in it."""
    return safe_url(table_url(settings.url, table))


def try_target(settings: HttpSettings) -> str:
    """What became of asking the endpoint with HEAD, which sends no row.

    Raises:
        TidesinkError: it does not answer, or refuses us.
    """
    endpoint = endpoint_of(settings, TableId("tidesink", "validate"))
    with Requests(replace(endpoint, attempts=1)) as asking:
        status = asking.ask()
    if status in _REFUSED:
        raise ConfigError(f"the endpoint refuses us (HTTP {status}): check target.auth", url=endpoint.shown)
    return f"{urlsplit(endpoint.url).netloc} answers (HTTP {status} to HEAD)"


def table_url(template: str, table: TableId) -> str:
    """The URL of a table: names are quoted, so that none is a step in the path."""
    return template.replace("{schema}", _quoted(table.schema)).replace("{table}", _quoted(table.name))


def _quoted(name: str) -> str:
    # A segment of dots alone is a step upwards, quoted or not.
    return quote(name, safe="") if name.strip(".") else "~" * len(name)


def endpoint_of(settings: HttpSettings, table: TableId) -> Endpoint:
    """Where a table's rows go and how.

    Raises:
        ConfigError: a certificate is not there.
    """
    return Endpoint(
        url=table_url(settings.url, table),
        method=settings.method,
        format=settings.format,
        headers=settings.header_values(),
        auth=settings.signing(),
        tls=settings.tls_options(),
        timeout=settings.timeout,
        attempts=settings.attempts,
        longest_wait=settings.longest_wait,
    )


@dataclass(frozen=True)
class HttpTarget:
    """The endpoint of ``settings``."""

    settings: HttpSettings
    store: StateStore

    @property
    def capabilities(self) -> Capabilities:
        """What an endpoint can do."""
        return CAPABILITIES

    def open_table(self, shape: TableShape, *, pipeline: str, delete_mode: DeleteMode = "hard") -> HttpTable:
        """The URL of ``shape``'s table; nothing is asked of it.

        Raises:
            ConfigError: a certificate is not there.
            SchemaRefusedError: the table has no key, or is to be soft-deleted from.
        """
        check_shape(shape, delete_mode)
        place = place_of(self.settings, shape.table)
        ledger = StoreLedger(
            self.store, ("http", place), shape.table, source=shape.source, pipeline=pipeline, keys=shape.keys
        )
        return HttpTable(self.settings, shape, ledger=ledger)


class HttpTable(MessageTable):
    """One table's URL, open for one worker thread."""

    def __init__(self, settings: HttpSettings, shape: TableShape, *, ledger: StoreLedger) -> None:
        super().__init__(shape, ledger=ledger)
        self._settings = settings
        self._endpoint = endpoint_of(settings, shape.table)

    def _send(self, batch: ReducedBatch, progress: Progress, entry: LedgerEntry) -> Sent:
        stamp = Stamp.of(entry, progress)
        slices = Slices(self._endpoint, batch.shape, stamp, self._settings.batch_rows)
        if batch.truncates:
            slices.truncate()
            return Sent(0, 0)
        frame = batch_frame(batch)
        check_kept(frame, batch, "http", tells=True)
        return run_tasks(
            _in_order(frame, batch.shape, self._settings.parallel_requests),
            slices.run,
            table=str(batch.shape.table),
        )


def _in_order(frame: DataFrame, shape: TableShape, tasks: int) -> DataFrame:
    """The rows by their keys: the same rows in the same slices, however often they are sent."""
    keys = [F.col("key").getField(column.name) for column in shape.key_columns]
    return frame.repartition(tasks, *keys).sortWithinPartitions(*keys)
