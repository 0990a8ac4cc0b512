"""Commits that something happens to: a connection that is cut off, and others who come between."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import TidesinkError
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.state.progress import Progress
from tidesink.sinks.targets.base import ReducedBatch, TargetTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PATIENCE_SECONDS: Final = 120


class _Between:
    """A Spark session, between a target and the one that does the work; so is a new session of it."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def newSession(self) -> Any:  # noqa: N802  Spark's name
        self._session = self._session.newSession()
        return self


class CutOff(_Between):
    """A Spark session whose next statement that begins as ``word`` says, a pattern, loses its connection."""

    def __init__(self, session: Any, *, before: bool, word: str = "MERGE") -> None:
        super().__init__(session)
        self._before, self._word = before, word
        self.armed = False

    def sql(self, text: str) -> Any:
        from py4j.protocol import Py4JNetworkError

        cut = self.armed and re.match(self._word, text)
        if cut:
            self.armed = False
        if cut and self._before:
            raise Py4JNetworkError("cut off")
        done = self._session.sql(text)
        if cut:
            raise Py4JNetworkError("cut off")
        return done


class _Forestalled(_Between):
    """A Spark session that another one gets ahead of, by what ``ahead`` does, once that is set."""

    ahead: Callable[[], object] | None = None

    def _get_ahead(self) -> None:
        if self.ahead:
            ahead, self.ahead = self.ahead, None
            ahead()


class Forestalled(_Forestalled):
    """Forestalled just before its next statement that begins with ``word``."""

    def __init__(self, session: Any, *, word: str = "MERGE") -> None:
        super().__init__(session)
        self._word = word

    def sql(self, text: str) -> Any:
        if text.startswith(self._word):
            self._get_ahead()
        return self._session.sql(text)


class ForestalledMarker(_Forestalled):
    """Forestalled within its next commit that is no statement: a marker's, a property's."""

    @property
    def conf(self) -> Any:
        """The settings: of what a commit is to say, Delta is told when its transaction has begun."""
        self._get_ahead()
        return self._session.conf


class HeldMerge:
    """A merge under way in a thread of its own; it goes on to its commit when the context ends.

    ``gate`` is a folder; ``raised`` is what became of the merge.
    """

    def __init__(self, table: TargetTable, batch: ReducedBatch, progress: Progress, *, gate: Path) -> None:
        self.raised: list[BaseException] = []
        self._table = table
        self._begun, self._go = gate / "begun", gate / "go"
        frame, payloads = batch.frame, batch.payloads
        assert frame is not None
        assert payloads is None or isinstance(payloads, SparkRows)
        self._batch = replace(
            batch,
            make_frame=lambda: _held(frame, "_op", self._begun, self._go),
            payloads=payloads and SparkRows(_held(payloads.frame, "payload", self._begun, self._go)),
        )
        self._progress = progress
        self._thread = threading.Thread(target=self._merge)

    def __enter__(self) -> HeldMerge:
        self._thread.start()
        _wait_for(self._begun)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._go.touch()
        self._thread.join(_PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _merge(self) -> None:
        try:
            self._table.apply(self._batch, self._progress)
        except TidesinkError as exc:
            self.raised.append(exc)


def _held(frame: DataFrame, column: str, begun: Path, go: Path) -> DataFrame:
    """The same rows, which say that they are being read and then wait."""
    from pyspark.sql.functions import udf

    begun_name, go_name, patience = str(begun), str(go), _PATIENCE_SECONDS

    # By value, with nothing of this module in it: Python's workers do not find the tests.
    def passed(value: Any) -> Any:
        import time
        from pathlib import Path

        Path(begun_name).touch()
        deadline = time.monotonic() + patience
        while not Path(go_name).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return value

    # Spark 4.1 guesses the kind of function from hints it finds, and warns where it cannot.
    passed.__annotations__ = {}
    return frame.withColumn(column, udf(passed, frame.schema[column].dataType)(column))


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} did not come"
        time.sleep(0.05)
