"""Spark of a worker: its JVM starts when something needs it for the first time.

A worker whose targets are databases or Kafka, and whose batches are small, never starts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidesink.errors import ConfigError, TidesinkError, TransientTargetError
from tidesink.sinks.spark.session import cancel_jobs, check_jvm, close_connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
# The job tag of the current thread, and True if Spark knows that the thread has it.
_tag_here: Final[ContextVar[str | None]] = ContextVar("job tag", default=None)
_is_tagged: Final[ContextVar[bool]] = ContextVar("job tag known to Spark", default=False)


class SparkEngine:
    """Starts Spark on demand, and runs the threads of a worker that may use it.

    It may be used from several threads.
    """

    def __init__(
        self, start: Callable[[], AbstractContextManager[SparkSession]], *, tasks: int | None = None
    ) -> None:
        """Create an engine that has not started Spark.

        ``start``: starts Spark, and stops it when the context ends. ``tasks``: the number of tasks that Spark
        runs at the same time. None: only Spark knows.
        """
        self._start = start
        self._tasks = tasks
        self._started = ExitStack()
        self._session: SparkSession | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, session: SparkSession) -> SparkEngine:
        """Returns an engine of a running Spark session. ``close`` does not stop it."""
        engine = cls(_refuse)
        engine._session = session
        return engine

    @property
    def is_started(self) -> bool:
        """True if Spark was started."""
        return self._session is not None

    def session(self) -> SparkSession:
        """Returns the Spark session, and starts Spark if it does not run.

        Jobs that the calling thread starts from now on have the thread's tag (``threads_tagged``).

        Raises:
            ConfigError: Spark cannot be started with the settings of the config.
            TransientTargetError: Spark did not start. The next call tries again.
        """
        with self._lock:
            if self._session is None:
                self._session = self._started_session()
        self._tag(self._session)
        return self._session

    def _started_session(self) -> SparkSession:
        try:
            return self._started.enter_context(self._start())
        except ConfigError:
            raise
        except Exception as exc:
            # A table that needs Spark is tried again later, as for other faults that may pass.
            reason = exc.message if isinstance(exc, TidesinkError) else type(exc).__name__
            raise TransientTargetError(
                f"Spark did not start: {reason}. Check that Java, memory and disk space are available. "
                "Tables with small batches go on meanwhile."
            ) from exc

    def new_session(self) -> SparkSession:
        """Returns a new Spark session with settings and temporary views of its own (``session``)."""
        return self.session().newSession()

    @property
    def tasks(self) -> int:
        """The number of tasks that Spark runs at the same time. Starts Spark if only Spark knows it."""
        return self._tasks or int(self.session().sparkContext.defaultParallelism)

    def thread(self, work: Callable[[], T], *, name: str) -> Future[T]:
        """Run ``work`` in a new thread. Returns a future with its result.

        The thread's Spark jobs have the tag of the calling thread. PySpark opens a connection and a JVM
        thread for every thread, and closes them only at garbage collection. Here they are closed when the
        thread ends.
        """
        future: Future[T] = Future()
        tag = _tag_here.get()

        def run() -> None:
            try:
                _tag_here.set(tag)
                if self._session is not None:
                    self._tag(self._session)
                result = work()
            except BaseException as exc:  # noqa: BLE001  (the future raises it)
                self._close_connection()
                future.set_exception(exc)
            else:
                self._close_connection()
                future.set_result(result)

        threading.Thread(target=run, name=name, daemon=True).start()
        return future

    def check(self, seconds: float = 0.0) -> None:
        """Check that the JVM runs, if it was started. Wait up to ``seconds`` for its end.

        Raises:
            SparkEndedError: The JVM has ended.
        """
        if self._session is not None:
            check_jvm(self._session, seconds)

    def cancel(self, tag: str) -> None:
        """Cancel the running Spark jobs of the threads that have this tag."""
        if self._session is not None:
            cancel_jobs(self._session, tag)

    def close(self) -> None:
        """Stop Spark if this engine started it."""
        with self._lock:
            self._started.close()

    def _tag(self, session: SparkSession) -> None:
        tag = _tag_here.get()
        if tag is not None and not _is_tagged.get():
            session.sparkContext.addJobTag(tag)
            _is_tagged.set(True)

    def _close_connection(self) -> None:
        if self._session is not None:
            close_connection(self._session)


@contextmanager
def threads_tagged(tag: str) -> Iterator[None]:
    """Give a tag to the Spark jobs of threads that are started within the context, so that these jobs can be
    cancelled together.
    """
    before = _tag_here.set(tag)
    try:
        yield
    finally:
        _tag_here.reset(before)


def _refuse() -> Any:
    raise AssertionError("the session runs already")
