"""A lake's table of cuts, which lists the version of each table that belongs to a cut (ADR 36).

A cut shows all tables of a pipeline at one commit_ts. It is one commit to the table of cuts, with a row for
each table of the pipeline. It is written when all tables have reached the commit_ts. A table that did not
change since the previous cut is listed with the same version as before.
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
from tidesink.sinks.spark.java_names import java_names
from tidesink.sinks.targets.base import TableReader
from tidesink.sinks.targets.cuts import NAME, CutTable, tag_prefix
from tidesink.sinks.targets.lake.merge import rows_that_live
from tidesink.sinks.targets.sharing import quote_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.typemap.target_schema import TargetColumn, TargetSchema

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
# Old cuts are removed after each time this many cuts were added, because removing them rewrites files.
_CUTS_BETWEEN: Final = 100
# Most files of a version whose existence is checked before it is read.
_LOOKED_FOR: Final = 100


@dataclass(frozen=True)
class Cut:
    """A cut, which shows all tables as of one commit_ts.

    ``commit_ts``: a TSO of TiDB, or a connector's commit position.
    ``time``: the source's time at ``commit_ts``.
    ``published``: the time when the cut was written.
    """

    commit_ts: int
    time: datetime
    published: datetime
    tables: tuple[CutTable, ...]


class CutLog:
    """Reads and publishes the cuts of one pipeline in a lake's table of cuts.

    ``location``: the quoted name of the table of cuts, which is created with the first cut.
    ``namespace``: the quoted namespace, which is created before the table; empty for none.
    ``exists``: returns True if the table of cuts exists.
    ``maintain``: compacts the files of the table of cuts.
    ``translate``: converts Spark's errors to tidesink's.
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
            ((commit_ts,),) = self.session.sql(newest).collect()
        return None if commit_ts is None else int(commit_ts)

    def publish(
        self,
        commit_ts: int,
        tables: Iterable[CutTable],
        *,
        time: datetime,
        without: Collection[TableId],  # noqa: ARG002  (a cut lists only its own tables)
        keep: float,
    ) -> None:
        """Write a cut in one commit. From time to time, also remove cuts older than ``keep`` seconds.

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
            rows = self.session.sql(f"SELECT {columns} FROM {self.location} WHERE {self._mine}").collect()  # noqa: S608
        cuts = dict[int, dict[TableId, Any]]()
        for row in rows:
            tables = cuts.setdefault(row["commit_ts"], {})
            name = TableId(row["schema"], row["table"])
            # Two workers may publish the same cut, with different versions. Both versions are right.
            if name not in tables or row["version"] > tables[name]["version"]:
                tables[name] = row
        return [_cut(commit_ts, cuts[commit_ts]) for commit_ts in sorted(cuts, reverse=True)]

    def tag_of(self, table: CutTable) -> str | None:
        """Return the name of the Iceberg tag that protects a cut's version of a table from expiry; None if
        there is no tag.

        Raises:
            TargetError: the table cannot be read.
        """
        if self.provider == "delta":
            return None
        with translating(self._translate, table.table):
            ours = f"startswith(name, {quote_text(tag_prefix(self._pipeline))})"
            mine = f"type = 'TAG' AND snapshot_id = {table.version}L AND {ours}"
            rows = self.session.sql(f"SELECT min(name) FROM {table.place}.refs WHERE {mine}").collect()  # noqa: S608
        return None if rows[0][0] is None else str(rows[0][0])

    @property
    def _mine(self) -> str:
        return f"pipeline = {quote_text(self._pipeline)}"

    def _create(self) -> None:
        if not self._exists():
            columns = ", ".join(f"`{name}` {ddl}" for name, ddl in COLUMNS.items())
            comment = quote_text("all tables of a pipeline as of one instant, written by tidesink")
            if self._namespace:
                self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")
            self.session.sql(
                f"CREATE TABLE IF NOT EXISTS {self.location} ({columns}) USING {self.provider} "
                f"COMMENT {comment}"
            )

    def _rows(self, cut: Cut) -> Iterator[tuple[str, ...]]:
        pipeline, moments = quote_text(self._pipeline), (cut.time, cut.published)
        times = [f"timestamp_micros({round(moment.timestamp() * 1_000_000)}L)" for moment in moments]
        for table in cut.tables:
            names = (quote_text(text) for text in (*table.table, table.place))
            changes = "CAST(NULL AS BIGINT)" if table.changes is None else f"{table.changes}L"
            yield pipeline, f"{cut.commit_ts}L", *times, *names, f"{table.version}L", changes

    def _remove(self, before: float) -> None:
        """Remove cuts published before a time. A failure is ignored, because later cuts try the removal
        again.
        """
        try:
            old = f"unix_micros(published) < {round(before * 1_000_000)}L"
            self.session.sql(f"DELETE FROM {self.location} WHERE {self._mine} AND {old}")  # noqa: S608
            self._maintain()
        except SPARK_ERRORS:
            return


def _cut(commit_ts: int, tables: dict[TableId, Any]) -> Cut:
    moments = (max(row[name] for row in tables.values()) for name in ("time", "published"))
    cut_tables = (
        CutTable(name, row["place"], row["version"], row["changes"]) for name, row in sorted(tables.items())
    )
    time, published = (datetime.fromtimestamp(moment / 1_000_000, timezone.utc) for moment in moments)
    return Cut(commit_ts, time, published, tuple(cut_tables))


def frame_of(log: CutLog, table: CutTable) -> DataFrame:
    """Return a Spark frame of the version of a table that a cut lists.

    Raises:
        TargetError: the version, or some of its files, no longer exist.
    """
    # Two readers, because a Spark reader keeps the options that are set on it.
    read, version_reader = log.session.read, log.session.read
    try:
        if log.provider == "delta":
            frame = version_reader.format("delta").option("versionAsOf", table.version).load(table.place)
            now = read.format("delta").load(table.place).inputFiles()
            lost = _lost(log.session, likely_lost(frame.inputFiles(), now), encoded=True)
        else:
            frame = version_reader.option("snapshot-id", str(table.version)).table(table.place)
            files, now = (
                [row[0] for row in reader.table(f"{table.place}.files").select("file_path").collect()]
                for reader in (version_reader, read)
            )
            lost = _lost(log.session, likely_lost(files, now), encoded=False)
    except SPARK_ERRORS as exc:
        raise _gone(table, summary(exc)) from exc
    if lost is not None:
        raise _gone(table, f"some of its files do not exist, such as {lost}")
    return frame


class CutReader(TableReader):
    """Reads the version of a lake's table that a cut lists. Later batches do not change it.

    Raises:
        TargetError: the version no longer exists.
    """

    def __init__(self, log: CutLog, table: CutTable, shape: TargetSchema) -> None:
        self.session = log.session
        self._frame, self._shape = frame_of(log, table), shape

    def columns(self) -> Mapping[str, str]:
        """Return the columns of the table's version in the cut: Spark type by name."""
        return {field.name: field.dataType.simpleString() for field in self._frame.schema.fields}

    def committed(self) -> None:
        """Return None, because no caller needs the progress of a version that a cut lists."""

    def rows(self, columns: Sequence[TargetColumn]) -> DataFrame:
        """Return the current rows of the table's version in the cut, with ``columns`` in this order."""
        return rows_that_live(self._frame, columns, self._shape.shard)


def likely_lost(files: Sequence[str], now: Iterable[str]) -> list[str]:
    """Choose those files of a table version whose existence is to be checked, possibly removed files first.

    Programs that remove old versions only remove files that the newest version does not have. They remove all
    such files that left the table before some time, so it is enough to check a sample.

    ``files``: the version's files.
    ``now``: the files of the table's newest version.
    """
    there = {*now}
    left = [name for name in files if name not in there]
    chosen = left[:: -(-len(left) // _LOOKED_FOR) or 1]
    present = (name for name in files if name in there)
    return [*chosen, *islice(present, _LOOKED_FOR - len(chosen))]


def _lost(session: SparkSession, files: Iterable[str], *, encoded: bool) -> str | None:
    """Return the first of a version's files that does not exist; None if all exist.

    ``encoded``: True if the names are URIs.
    """
    jvm = java_names(session)
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
