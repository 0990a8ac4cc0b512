"""The bounds of cuts whose tables a Debezium connector writes: its checkpoints (ADR 36).

A checkpoint that was read is a bound that every partition has passed, at the end that it has when it is asked
afterwards. Nothing of it is kept: a worker that is started reads the newest, and asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import structlog

from tidesink.config.models import CutSettings
from tidesink.config.source import SourceSettings
from tidesink.errors import ConfigError, SourceError
from tidesink.sinks.batch.counts import greatest
from tidesink.sinks.kafka.checkpoints import Checkpoint, ConnectorCheckpoints
from tidesink.sinks.state.progress import Progress

_log = structlog.get_logger("tidesink.worker")


class ConnectorBounds:
    """Bounds one behind the other, ``every`` seconds apart. Used by the worker's own thread.

    ``reason``: why there is no other bound. ``clock`` gives seconds and never runs backwards.
    """

    def __init__(
        self,
        checkpoints: ConnectorCheckpoints,
        every: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reason = ""
        self._checkpoints = checkpoints
        self._every = every
        self._clock = clock
        self._chosen: Checkpoint | None = None
        self._chosen_at = 0.0
        self._ends: dict[str, dict[int, int]] = {}

    @property
    def time(self) -> float | None:
        """The source's time of the bound, in seconds since 1970; None before there is one."""
        return self._chosen.time if self._chosen is not None else None

    def look(self) -> None:
        """Read the newest checkpoint; what keeps it from being read is the ``reason``."""
        try:
            self._checkpoints.look()
        except SourceError as exc:
            if exc.message != self.reason:
                _log.warning("checkpoints cannot be read", error=str(exc))
            self.reason = exc.message
        else:
            self.reason = self._checkpoints.reason

    def next(self, *, above: int | None, least: int | None) -> int | None:
        """The newest checkpoint as the bound, if it is above the last cut, and not below ``least``.

        One that is below what tables have is of a connector that sends from an earlier position, or of
        another server: nothing is read until it has come to there.
        """
        newest, floor = self._checkpoints.newest, greatest([above, least])
        if newest is None:
            return None
        if floor is not None and newest.position < floor:
            self.reason = (
                f"the connector's checkpoint ({newest.position}) is below what the tables have ({floor}): it "
                "sends again from an earlier position, or reads another server, whose log has other "
                "positions. Wait until it has come after; of another server load the tables again, under "
                "another pipeline's name"
            )
            return None
        if newest.position == above:
            return None
        self._chosen, self._chosen_at, self._ends = newest, self._clock(), {}
        return newest.position

    def after(self, bound: int) -> int:
        """The bound behind one that is done with, once its time has come; until then the same."""
        if self._clock() - self._chosen_at < self._every:
            return bound
        found = self.next(above=bound, least=bound)
        return bound if found is None else found

    def tries_again(self) -> bool:
        """Whether a cut that was passed over is to be tried again: each ``every`` seconds."""
        if self._clock() - self._chosen_at < self._every:
            return False
        self._chosen_at = self._clock()
        return True

    def ask_ends(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Know where the partitions end behind the bound; of each it is asked once.

        Raises:
            SourceError: a partition gives no answer.
        """
        if self._chosen is None:
            return
        lacking = {
            topic: [number for number in numbers if number not in self._ends.get(topic, ())]
            for topic, numbers in partitions.items()
        }
        # The bound was read before: what is asked now is behind all its rows.
        for topic, ends in self._checkpoints.ends({one: n for one, n in lacking.items() if n}).items():
            self._ends[topic] = {**self._ends.get(topic, {}), **ends}

    def ends(self, topic: str) -> Mapping[int, int]:
        """By partition of a topic the end behind which nothing comes up to the bound, where it is known."""
        return self._ends.get(topic, {})

    def close(self) -> None:
        """Let go of the clients."""
        self._checkpoints.close()


def check_bounded(progress: Progress) -> None:
    """See that nothing was applied to a table by a worker without cuts.

    Raises:
        ConfigError: nothing tells how late what it holds is.
    """
    if progress.topics and progress.bound is None:
        raise ConfigError(
            f"{progress.table} was read without cuts, and nothing says up to which position of the source's "
            "log: a cut might have a part of a transaction. Remove cuts from the config, or load the table "
            "again with them (another target.path, or remove the table at the target)",
            table=str(progress.table),
        )


def is_empty(progress: Progress | None, starts: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    """Whether a topic has nothing for a table up to the bound, which was never applied to it either.

    ``starts``: the first offset that each partition keeps.
    """
    if progress is not None and progress.topics:
        return False
    return all(number in ends and ends[number] <= start for number, start in starts.items())


def connector_bounds(source: SourceSettings, cuts: CutSettings) -> ConnectorBounds | None:
    """The bounds of a config's cuts, where a connector's checkpoints tell them."""
    debezium = source.debezium
    if debezium.offsets_topic is None or debezium.connector_name is None:
        return None
    found = ConnectorCheckpoints(source.confluent_properties, debezium.offsets_topic, debezium.connector_name)
    return ConnectorBounds(found, cuts.every)
