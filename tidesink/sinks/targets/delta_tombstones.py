"""Forgetting the deletes a Delta table in the source's order still has marked.

The horizon is a table property, raised before rows go: what a crash leaves between the two is marked rows
that the next collection takes.
"""

# ruff: noqa: S608  every name and text in a statement is quoted by identifier.py
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import StaleProgressError
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, Collected
from tidesink.sinks.targets.delta_log import DeltaLog
from tidesink.sinks.targets.delta_session import transaction
from tidesink.sinks.targets.identifier import quote_identifier, quote_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION: Final = "tidesink.tombstones"
PROPERTY: Final = "tidesink.horizon"
_MARKED: Final = quote_identifier(SOFT_DELETE_COLUMN)
_COMMIT_TS: Final = f"{quote_path(SEQUENCE_COLUMN, 'source')}[0]"


def horizon_of(log: DeltaLog) -> int | None:
    """The commit_ts up to which the table's deletes may be forgotten."""
    text = log.property(PROPERTY)
    return int(text) if text else None


def collect(session: SparkSession, log: DeltaLog, location: str, *, horizon: int, epoch: int) -> Collected:
    """Raise the horizon and remove the deletes up to it.

    Both commits carry a transaction version of the epoch, and so does a claim: a worker that lost the table
    neither takes marks from under the one that holds it, which would not know, nor puts the horizon back.

    Raises:
        StaleProgressError: another worker has claimed the table since.
    """
    now = max(horizon, horizon_of(log) or 0)
    words = f"deletes up to commit_ts {now} are forgotten from here on"
    if not log.put_property(APPLICATION, log.next_version(epoch), PROPERTY, str(now), words=words):
        raise _lost(log)
    with transaction(session, APPLICATION, log.next_version(epoch)):
        removed = session.sql(f"DELETE FROM {location} WHERE {_MARKED} AND {_COMMIT_TS} <= {now}").collect()
    if not removed:  # of what Delta skips it counts nothing, not even 0 rows
        raise _lost(log)
    left = f"SELECT count(*) AS kept, min({_COMMIT_TS}) AS oldest FROM {location} WHERE {_MARKED}"
    kept: Any = session.sql(left).first()
    return Collected(now, int(removed[0][0]), kept["kept"], kept["oldest"])


def _lost(log: DeltaLog) -> StaleProgressError:
    return StaleProgressError(
        f"another worker claimed the Delta table at {log.path} while this one collected its deletes: nothing "
        "was removed, and this worker must stop"
    )
