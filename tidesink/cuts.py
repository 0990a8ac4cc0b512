"""Read the tables of a lake as of one instant: the cuts that a worker published (``docs/cuts.md``).

from tidesink import cuts

tables = cuts.open(spark, "pipeline.yaml", at="2026-11-26T12:00:00Z")
tables["shop.orders"].join(tables["shop.customers"], …)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from tidesink.config import Config, load_config
from tidesink.config.targets import DeltaSettings, IcebergSettings
from tidesink.errors import ConfigError
from tidesink.events import LOGICAL_BITS, time_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.sinks.state.progress import StateStore
    from tidesink.sinks.targets.cuts import CutTarget
    from tidesink.sinks.targets.lake.cuts import Cut, CutLog

__all__ = ["check_lake", "chosen", "commit_ts_of", "cut_log", "open", "started_spark"]

At = int | str | datetime
_EPOCH: Final = datetime.fromtimestamp(0, timezone.utc)


def open(spark: SparkSession, config: Config | Path | str, *, at: At | None = None) -> dict[str, DataFrame]:
    """Return the tables of a pipeline as of one cut, by ``schema.table`` of the source.

    ``config``: the pipeline's config, or its file. ``at``: chooses the newest cut up to this commit_ts (TiDB
    TSO, or a connector's position) or time of the source, also as ISO text, which is UTC without a zone.
    None: the newest cut.
    ``spark`` must have the lake's format and file system.

    Raises:
        ConfigError: the config has no lake, or all stored cuts are later.
        TargetError: a version of the cut no longer exists; the message says what may have removed it.
    """
    from tidesink.sinks.targets.lake.cuts import frame_of

    log = cut_log(spark, config if isinstance(config, Config) else load_config(Path(config)))
    cut = chosen(log.cuts(), at)
    return {str(table.table): frame_of(log, table) for table in cut.tables}


def cut_log(spark: SparkSession, config: Config) -> CutLog:
    """Return the log of a pipeline's cuts.

    Raises:
        ConfigError: its target is not a lake.
    """
    from tidesink.sinks.targets import target_module

    check_lake(config)
    # The state store is not needed to read tables.
    target = target_module(config.target).open_target(config, spark, cast("StateStore", None))
    return cast("CutLog", cast("CutTarget", target).cut_log(config.pipeline))


def check_lake(config: Config) -> None:
    """Check that a pipeline's target stores versions of tables.

    Raises:
        ConfigError: it does not.
    """
    if not isinstance(config.target, DeltaSettings | IcebergSettings):
        raise ConfigError(
            f"A target of type {config.target.type} stores no versions of tables that could be read as of a "
            "cut. With cuts a database has all tables as of the last one (docs/cuts.md).",
            key="target.type",
        )


@contextmanager
def started_spark(config: Config) -> Iterator[SparkSession]:
    """Yield the running Spark session, or one from the config, which is stopped at the end.

    Raises:
        ConfigError: the target is not a lake.
    """
    check_lake(config)
    from tidesink.sinks.spark.session import session_of

    with session_of(config) as session:
        yield session


def chosen(cuts: Sequence[Cut], at: At | None) -> Cut:
    """Return the newest cut up to a moment. ``cuts`` are sorted, the newest first.

    Raises:
        ConfigError: there is no such cut.
    """
    if not cuts:
        raise ConfigError(
            "The pipeline has published no cut yet. Set cuts in the config and run it.", key="cuts"
        )
    found = next((cut for cut in cuts if at is None or _is_by(cut, at)), None)
    if found is None:
        raise ConfigError(
            f"No stored cut is as old as {at}. The oldest one is of {cuts[-1].time.isoformat()} "
            f"(commit_ts {cuts[-1].commit_ts}).",
            key="cuts.keep",
        )
    return found


def _is_by(cut: Cut, at: At) -> bool:
    """Return True if a cut is not later than a moment, to the millisecond, or than a commit_ts."""
    moment = _moment(at)
    return cut.commit_ts <= moment if isinstance(moment, int) else _ms(cut.time) <= _ms(moment)


def commit_ts_of(at: At) -> int:
    """Convert a moment to a TiDB TSO: the last one of its millisecond.

    Raises:
        ConfigError: the text is not a time.
    """
    moment = _moment(at)
    return moment if isinstance(moment, int) else (_ms(moment) + 1 << LOGICAL_BITS) - 1


def _moment(at: At) -> int | datetime:
    if isinstance(at, str):
        if at.isdigit():
            return int(at)
        try:
            at = time_of(at)
        except ValueError as error:
            raise ConfigError(f"{at!r} is not a time. Give a commit_ts, or 2026-11-26T12:00:00Z.") from error
    if isinstance(at, int) or at.tzinfo is not None:
        return at
    return at.replace(tzinfo=timezone.utc)


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
