"""A lake's table of cuts: which version of each table has the source's rows as of one instant (ADR 36).

A cut is one commit to this table, with a row for each table of the pipeline. It is written when every table
is at the cut, and names existing versions. A table that did not change is listed with its earlier version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from tidesink.errors import TargetError, TidesinkError
from tidesink.events import TableId
from tidesink.sinks.spark.errors import SPARK_ERRORS, summary, translating
from tidesink.sinks.targets.base import TableReader
from tidesink.sinks.targets.cuts import NAME, CutTable, tag_prefix
from tidesink.sinks.targets.lake.merge import rows_that_live
from tidesink.sinks.targets.sharing import quote_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.typemap.target_schema import ShapeColumn, TableShape

Provider = Literal["delta", "iceberg"]

COLUMNS: Final = {
    "pipeline": "string",
    "commit_ts": "bigint",
    "time": "timestamp",
    "published": "timestamp",
    "schema": "string",
    "table": "string",
    "place": "string",
    "version": "bigint",
    "changes": "bigint",
}
# Old cuts are removed once per this many new ones, because that rewrites files.
_CUTS_BETWEEN: Final = 100
# Number of a version's files that are checked before it is read. They are checked one by one.
_LOOKED_FOR: Final = 100


@dataclass(frozen=True)
class Cut:
    """One cut: all tables as of ``commit_ts``, which is a TSO of TiDB or a commit position of a connector.

    ``time``: the source's time.
    ``published``: when the cut was written.
    """

    commit_ts: int
    time: datetime
    published: datetime
    tables: tuple[CutTable, ...]


class CutLog:
    """The cuts of one pipeline, in a lake's table ``location`` (quoted), which need not exist yet.

    ``namespace``: quoted; created before the table.
    ``maintain``: compacts the table's files.
    ``translate``: converts Spark's errors to ours.
    """

    def __init__(  # noqa: PLR0913  (what differs between the lakes)
        self,
        session: SparkSession,
        location: str,
        provider: Provider,
        pipeline: str,
        *,
        namespace: str = "",
        exists: Callable[[], bool],
        maintain: Callable[[], object],
        translate: Callable[..., TidesinkError],
    ) -> None:
        self.session = session
        self.location = location
        self.provider = provider
        self._pipeline, self._namespace = pipeline, namespace
        self._table = TableId("tidesink", NAME)
        self._exists, self._maintain, self._translate = exists, maintain, translate
        self._published = 0

    def last(self) -> int | None:
        """Return the commit_ts of the newest cut; None if there is no cut.

        Raises:
            TargetError: the table of cuts cannot be read.
        """
        with translating(self._translate, self._table):
            if not self._exists():
                return None
            newest = f"SELECT max(commit_ts) FROM {self.location} WHERE {self._mine}"  # noqa: S608
            ((found,),) = self.session.sql(newest).collect()
        return None if found is None else int(found)

    def publish(
        self,
        commit_ts: int,
        tables: Iterable[CutTable],
        *,
        time: datetime,
        without: Collection[TableId],  # noqa: ARG002  (a cut lists only its own tables)
        keep: float,
    ) -> None:
        """Write a cut in one commit. Now and then, remove cuts older than ``keep`` seconds.

        Raises:
            TargetError: the cut was not written, or the outcome is unknown.
        """
        now = datetime.now(timezone.utc)
        cut = Cut(commit_ts, time, now, tuple(tables))
        with translating(self._translate, self._table):
            if self._published == 0:
                self._create()
            rows = ", ".join(f"({', '.join(row)})" for row in self._rows(cut))
            self.session.sql(f"INSERT INTO {self.location} SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}")  # noqa: S608
            self._published += 1
        if self._published % _CUTS_BETWEEN == 1:
            self._remove(now.timestamp() - keep)

    def cuts(self) -> list[Cut]:
        """Return the stored cuts, newest first.

        Raises:
            TargetError: the table of cuts cannot be read.
        """
        with translating(self._translate, self._table):
            if not self._exists():
                return []
            moments = ", ".join(f"unix_micros({name}) AS {name}" for name in ("time", "published"))
            columns = f"commit_ts, {moments}, schema, table, place, version, changes"
            found = self.session.sql(f"SELECT {columns} FROM {self.location} WHERE {self._mine}").collect()  # noqa: S608
        cuts = dict[int, dict[TableId, Any]]()
        for row in found:
            tables = cuts.setdefault(row["commit_ts"], {})
            name = TableId(row["schema"], row["table"])
            # Two workers may publish one cut. Both entries are right.
            if name not in tables or row["version"] > tables[name]["version"]:
                tables[name] = row
        return [_cut(commit_ts, cuts[commit_ts]) for commit_ts in sorted(cuts, reverse=True)]

    def tag_of(self, table: CutTable) -> str | None:
        """Return the tag that keeps a cut's version of a table; None if there is no tag.

        Raises:
            TargetError: the table cannot be read.
        """
        if self.provider == "delta":
            return None
        with translating(self._translate, table.table):
            ours = f"startswith(name, {quote_text(tag_prefix(self._pipeline))})"
            mine = f"type = 'TAG' AND snapshot_id = {table.version}L AND {ours}"
            found = self.session.sql(f"SELECT min(name) FROM {table.place}.refs WHERE {mine}").collect()  # noqa: S608
        return None if found[0][0] is None else str(found[0][0])

    @property
    def _mine(self) -> str:
        return f"pipeline = {quote_text(self._pipeline)}"

    def _create(self) -> None:
        if not self._exists():
            columns = ", ".join(f"`{name}` {ddl}" for name, ddl in COLUMNS.items())
            comment = quote_text("all tables of a pipeline as of one instant, kept by tidesink")
            if self._namespace:
                self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")
            self.session.sql(
                f"CREATE TABLE IF NOT EXISTS {self.location} ({columns}) USING {self.provider} "
                f"COMMENT {comment}"
            )

    def _rows(self, cut: Cut) -> Iterator[tuple[str, ...]]:
        pipeline, moments = quote_text(self._pipeline), (cut.time, cut.published)
        times = [f"timestamp_micros({round(moment.timestamp() * 1_000_000)}L)" for moment in moments]
        for one in cut.tables:
            names = (quote_text(text) for text in (*one.table, one.place))
            changes = "CAST(NULL AS BIGINT)" if one.changes is None else f"{one.changes}L"
            yield pipeline, f"{cut.commit_ts}L", *times, *names, f"{one.version}L", changes

    def _remove(self, before: float) -> None:
        """Remove cuts published before a time. If that fails, it is tried again after as many new cuts."""
        try:
            old = f"unix_micros(published) < {round(before * 1_000_000)}L"
            self.session.sql(f"DELETE FROM {self.location} WHERE {self._mine} AND {old}")  # noqa: S608
            self._maintain()
        except SPARK_ERRORS:
            return


def _cut(commit_ts: int, tables: dict[TableId, Any]) -> Cut:
    moments = (max(row[name] for row in tables.values()) for name in ("time", "published"))
    found = (
        CutTable(name, row["place"], row["version"], row["changes"]) for name, row in sorted(tables.items())
    )
    time, published = (datetime.fromtimestamp(one / 1_000_000, timezone.utc) for one in moments)
    return Cut(commit_ts, time, published, tuple(found))


def frame_of(log: CutLog, table: CutTable) -> DataFrame:
    """Return a table's rows as of a cut.

    Raises:
        TargetError: another program removed the version, or some of its files.
    """
    # A reader keeps the options that are set on it.
    read, at = log.session.read, log.session.read
    try:
        if log.provider == "delta":
            frame = at.format("delta").option("versionAsOf", table.version).load(table.place)
            now = read.format("delta").load(table.place).inputFiles()
            lost = _lost(log.session, likely_lost(frame.inputFiles(), now), encoded=True)
        else:
            frame = at.option("snapshot-id", str(table.version)).table(table.place)
            files, now = (
                [row[0] for row in one.table(f"{table.place}.files").select("file_path").collect()]
                for one in (at, read)
            )
            lost = _lost(log.session, likely_lost(files, now), encoded=False)
    except SPARK_ERRORS as exc:
        raise _gone(table, summary(exc)) from exc
    if lost is not None:
        raise _gone(table, f"some of its files do not exist, such as {lost}")
    return frame


class CutReader(TableReader):
    """Reads one table of a lake as of a cut, whatever is applied meanwhile. It has no progress.

    Raises:
        TargetError: the version was removed.
    """

    def __init__(self, log: CutLog, table: CutTable, shape: TableShape) -> None:
        self.session = log.session
        self._frame, self._shape = frame_of(log, table), shape

    def columns(self) -> Mapping[str, str]:
        """Return the version's columns."""
        return {one.name: one.dataType.simpleString() for one in self._frame.schema.fields}

    def committed(self) -> None:
        """Return None, because a cut does not change."""

    def rows(self, columns: Sequence[ShapeColumn]) -> DataFrame:
        """Return the version's rows."""
        return rows_that_live(self._frame, columns, self._shape.shard)


def likely_lost(files: Sequence[str], now: Iterable[str]) -> list[str]:
    """Choose some of a version's files to check. ``now``: the files of the table's newest version.

    Files that are not in the newest version come first: programs that remove old versions remove only those,
    and all of those that left the table before some time.
    """
    there = {*now}
    left = [name for name in files if name not in there]
    chosen = left[:: -(-len(left) // _LOOKED_FOR) or 1]
    kept = (name for name in files if name in there)
    return [*chosen, *islice(kept, _LOOKED_FOR - len(chosen))]


def _lost(session: SparkSession, files: Iterable[str], *, encoded: bool) -> str | None:
    """Return the first file that does not exist. ``encoded``: the names are URIs."""
    jvm: Any = session._jvm
    conf = session._jsparkSession.sessionState().newHadoopConf()
    path_of = jvm.org.apache.hadoop.fs.Path
    paths = ((name, path_of(jvm.java.net.URI(name) if encoded else name)) for name in files)
    return next((name for name, path in paths if not path.getFileSystem(conf).exists(path)), None)


def _gone(table: CutTable, reason: str) -> TargetError:
    return TargetError(
        f"Version {table.version} of {table.place} can no longer be read ({reason}). It was removed, for "
        "example by VACUUM or expire_snapshots with a shorter retention than cuts.keep. Use a later cut.",
        table=str(table.table),
    )
