"""Read the tables of a lake as of one instant, by the cuts that a worker has published (``docs/cuts.md``).

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
    """Returns the tables of a pipeline as of one cut (all tables as of one source transaction). The keys are
    names of the form ``schema.table``, as in the source database.

    Args:
        spark: A session that can read the lake's format and file system.
        config: The pipeline's config, or its file.
        at: Selects the newest cut that is not later: a commit_ts (TiDB TSO, or a connector's position) or a
            time of the source. The time may be ISO text, which is in UTC if it has no zone. None: the newest
            cut.

    Raises:
        ConfigError: The config has no lake, no cut is published yet, or all stored cuts are later.
        TargetError: A table's version of the cut no longer exists. The message names the possible causes.
    """
    from tidesink.sinks.targets.lake.cuts import frame_of

    log = cut_log(spark, config if isinstance(config, Config) else load_config(Path(config)))
    cut = chosen(log.cuts(), at)
    return {str(table.table): frame_of(log, table) for table in cut.tables}


def cut_log(spark: SparkSession, config: Config) -> CutLog:
    """Returns the log in which a pipeline records its cuts (all tables as of one source transaction).

    Raises:
        ConfigError: The pipeline's target is not a lake.
    """
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.sinks.targets import target_module

    check_lake(config)
    # The state store is not needed to read tables, so it is not opened.
    target = target_module(config.target).open_target(config, SparkEngine.of(spark), cast("StateStore", None))
    return cast("CutLog", cast("CutTarget", target).cut_log(config.pipeline))


def check_lake(config: Config) -> None:
    """Check that a pipeline's target stores versions of tables, as lakes do.

    Raises:
        ConfigError: The target is not a lake.
    """
    if not isinstance(config.target, DeltaSettings | IcebergSettings):
        raise ConfigError(
            f"A target of type {config.target.type} stores no versions of tables that could be read as of a "
            "cut. Query the tables directly: with cuts, a target database always has all tables as of the "
            "last cut (docs/cuts.md).",
            key="target.type",
        )


@contextmanager
def started_spark(config: Config) -> Iterator[SparkSession]:
    """Yield a Spark session: the running one, or one for the config that is stopped at the end.

    Raises:
        ConfigError: The target is not a lake.
    """
    check_lake(config)
    from tidesink.sinks.spark.session import session_of

    with session_of(config) as session:
        yield session


def chosen(cuts: Sequence[Cut], at: At | None) -> Cut:
    """Returns the newest cut that is not later than ``at``; if ``at`` is None, the newest of all. ``cuts``:
    the stored cuts, newest first.

    Raises:
        ConfigError: No cut is published, or all stored cuts are later than ``at``.
    """
    if not cuts:
        raise ConfigError(
            "The pipeline has published no cut yet. Set cuts in the config, and run the pipeline.", key="cuts"
        )
    newest = next((cut for cut in cuts if at is None or _is_by(cut, at)), None)
    if newest is None:
        raise ConfigError(
            f"All stored cuts are later than {at}. The oldest cut is of {cuts[-1].time.isoformat()} "
            f"(commit_ts {cuts[-1].commit_ts}). Choose this time or a later one.",
            key="cuts.keep",
        )
    return newest


def _is_by(cut: Cut, at: At) -> bool:
    """Returns True if a cut is not later than a commit_ts, or than a time (compared in ms)."""
    moment = _moment(at)
    return cut.commit_ts <= moment if isinstance(moment, int) else _ms(cut.time) <= _ms(moment)


def commit_ts_of(at: At) -> int:
    """Convert a time to a TiDB TSO, the last one of its millisecond. A commit_ts is returned unchanged.

    Raises:
        ConfigError: The text is not a time.
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
            raise ConfigError(
                f"{at!r} is not a time. Use a commit_ts, or a time such as 2026-11-26T12:00:00Z."
            ) from error
    if isinstance(at, int) or at.tzinfo is not None:
        return at
    return at.replace(tzinfo=timezone.utc)


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
