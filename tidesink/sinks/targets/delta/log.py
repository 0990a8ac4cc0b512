"""Access to a Delta table's log through Delta's Java API, and conversion of Delta's errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from tidesink.errors import CommitUnknownError, TargetError, TidesinkError, TransientTargetError
from tidesink.sinks.spark.errors import class_names, is_java, row_not_stored, summary, task_error
from tidesink.sinks.spark.java_names import java_names, scala_object
from tidesink.sinks.state.progress import BATCHES_PER_EPOCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The operation that ``commit_marker`` records in its commits. With "Manual Update", Delta would compute the
# table's whole state for the commit's checksum (RecordChecksum, Delta 4.3), which takes half a second.
MARKER: Final = "Empty Commit"
USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class Commit:
    """A commit of the table, as recorded in its log.

    ``version``: the table version that it created.
    ``operation``: Delta's name of the operation, such as MERGE.
    ``read_version``: the table version that its transaction read; None if not recorded.
    ``metadata``: its user metadata; None if it has none.
    ``metrics``: its operation metrics, such as numbers of rows.
    ``restored_version``: the version that a RESTORE went back to; None if it went back to a timestamp, and
        for other operations.
    ``overwrites``: True if the commit replaced all rows.
    """

    version: int
    operation: str
    read_version: int | None = None
    metadata: str | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)
    restored_version: int | None = None
    overwrites: bool = False


# Spark's active session (Java) of the current thread, inside a block of ``DeltaLog.active``.
_active: Final[ContextVar[Any]] = ContextVar("active session", default=None)


class DeltaLog:
    """The log of the Delta table at ``path``. The table may not exist yet."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self._jvm = java_names(session)
        self._java_session: Any = session._jsparkSession
        self.path = path
        self._update_defaults: tuple[Any, Any] | None = None

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        return self.latest() >= 0

    def latest(self) -> int:
        """Read and return the latest version of the table; -1 if the table does not exist."""
        return int(self._ask(lambda snapshot: snapshot.version()))

    def file_count(self) -> int:
        """Return the number of data files in the latest version of the table."""
        return int(self._ask(_file_count))

    def property(self, name: str) -> str | None:
        """Return the value of a table property; None if it is not set."""
        value = self._ask(lambda snapshot: snapshot.metadata().configuration().get(name))
        return str(value.get()) if value.isDefined() else None

    def supports(self, feature: str) -> bool:
        """Return True if the table has a feature that its readers or writers must support."""
        features = self._ask(lambda snapshot: snapshot.protocol().implicitlyAndExplicitlySupportedFeatures())
        names = features.iterator()
        while names.hasNext():
            if str(names.next().name()) == feature:
                return True
        return False

    def schema(self) -> str:
        """Return the table's current schema in Spark's JSON form."""
        return str(self._ask(lambda snapshot: snapshot.metadata().schema().json()))

    def partition_columns(self) -> tuple[str, ...]:
        """Return the names of the table's partition columns."""
        columns = self._ask(lambda snapshot: snapshot.metadata().partitionColumns())
        return tuple(str(columns.apply(index)) for index in range(int(columns.size())))

    def commit(self, version: int) -> Commit | None:
        """Return the commit that created a version; None if Delta has removed its file from the log."""
        line = self._first_line(version)
        return None if line is None else _parse_commit(version, line)

    def newest_first(self, *, at: int | None = None, above: int = -1) -> Iterator[Commit | None]:
        """Yield the commits from version ``at`` (default: the latest) down to version ``above`` + 1.

        If Delta has removed a commit from the log, None is yielded for it, and the iteration ends.
        """
        for version in range(self.latest() if at is None else at, above, -1):
            commit = self.commit(version)
            yield commit
            if commit is None:
                return

    def transaction_version(self, application: str) -> int | None:
        """Return the last transaction version that an application committed; None if it never committed one.

        Delta keeps this version even when it removes old commits from the log.
        """
        version = self._ask(lambda snapshot: snapshot.transactions().get(application))
        return int(version.get()) if version.isDefined() else None

    def next_version(self, epoch: int) -> int:
        """Return a transaction version of ``epoch`` for a commit that is not a batch.

        It is the start of the epoch's versions plus the table's version, so it is greater than those of
        earlier such commits.
        """
        return epoch * BATCHES_PER_EPOCH + self.latest()

    def applications(self) -> tuple[str, ...]:
        """Return the names of all applications that committed a transaction version."""
        names = self._ask(lambda snapshot: snapshot.transactions().keySet().mkString("\n"))
        return tuple(str(names).splitlines())

    def commit_marker(
        self,
        application: str,
        version: int,
        metadata: str,
        *,
        read_at: int | None = None,
        fences: Mapping[str, int] | None = None,
    ) -> int | None:
        """Commit a transaction version and user metadata, without rows. Returns the new table version.

        Returns None, without a commit, if the table is no longer at version ``read_at``, or if the
        application's last transaction version is not below ``version``. Delta raises a conflict if another
        commit of the same application is made at the same time.

        ``metadata``: the text of the user metadata.
        ``fences``: by name of another application, a transaction version to commit too. Delta then refuses or
            skips commits of that application up to this version.
        """
        package = self._jvm.org.apache.spark.sql.delta
        with self.active():
            transaction = self.java().startTransaction()
            if read_at is not None and transaction.readVersion() != read_at:
                return None
            if stored_version(transaction, application) >= version:
                return None
            operation = scala_object(package, "DeltaOperations$EmptyCommit")
            actions = self.transactions({application: version, **(fences or {})})
            with user_metadata(self._session, metadata):
                return int(transaction.commit(actions, operation))

    def put_property(
        self, application: str, version: int, name: str, value: str | None, *, words: str
    ) -> bool:
        """Commit a table property with a transaction version, which ALTER TABLE cannot do.

        Returns False, without a commit, if the application's last transaction version is not below
        ``version``. Delta raises a conflict if another commit of the same application is made at the same
        time.

        ``value``: the new value; None removes the property.
        ``words``: the text of the commit's user metadata.
        """
        with self.active():
            transaction = self.java().startTransaction()
            if stored_version(transaction, application) >= version:
                return False
            metadata = _with_property(transaction.metadata(), name, value)
            transaction.updateMetadata(metadata, getattr(transaction, "updateMetadata$default$2")())
            operation = self._put_operation(metadata.configuration().empty(), name, value)
            with user_metadata(self._session, words):
                transaction.commit(self.transactions({application: version}), operation)
        return True

    def _put_operation(self, none: Any, name: str, value: str | None) -> Any:
        """Return Delta's operation (Java) for a commit that sets a table property; ``none``: an empty Scala
        map.
        """
        package = self._jvm.org.apache.spark.sql.delta
        if value is None:
            return getattr(package, "DeltaOperations$UnsetTableProperties")(
                java_sequence(self._jvm, [name]), True
            )
        return getattr(package, "DeltaOperations$SetTableProperties")(none.updated(name, value))

    def transactions(self, versions: Mapping[str, int]) -> Any:
        """Return Delta's actions (Java) that commit transaction versions.

        ``versions``: the transaction version to commit, by application name.
        """
        package, now = self._jvm.org.apache.spark.sql.delta, self._jvm.scala.Some(int(time.time() * 1000))
        set_transaction = package.actions.SetTransaction
        return java_sequence(
            self._jvm, [set_transaction(name, version, now) for name, version in versions.items()]
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this table's Spark session the thread's active session inside the block, as Delta's API
        requires.
        """
        # Delta's transactions read their settings from the active session.
        if _active.get() is self._java_session:
            yield
            return
        sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(self._java_session)
        active = _active.set(self._java_session)
        try:
            yield
        finally:
            _active.reset(active)
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    def java(self) -> Any:
        """Return Delta's Java object ``DeltaLog`` of this table."""
        # Not cached here, because a table that is dropped and created again gets a new object. Delta caches
        # it by path.
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._java_session, self.path)

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Read the log, and return what ``question`` returns for the table's latest snapshot in Java."""
        with self.active():
            log = self.java()
            if self._update_defaults is None:  # both are None in Scala
                self._update_defaults = getattr(log, "update$default$2")(), getattr(log, "update$default$3")()
            return question(log.update(False, *self._update_defaults))

    def _first_line(self, version: int) -> str | None:
        log = self.java()
        path = self._jvm.org.apache.hadoop.fs.Path(log.logPath(), f"{version:020d}.json")
        try:
            lines = log.store().readAsIterator(path, log.newDeltaHadoopConf())
        except Py4JJavaError as exc:
            if is_java(exc.java_exception, "java.io.FileNotFoundException"):
                return None
            raise
        try:
            return str(lines.next()) if lines.hasNext() else None
        finally:
            lines.close()


def java_sequence(jvm: Any, items: Iterable[Any]) -> Any:
    """Convert Java objects to a Scala sequence."""
    java_list = jvm.java.util.ArrayList()
    for item in items:
        java_list.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(java_list).toSeq()


def _with_property(metadata: Any, name: str, value: str | None) -> Any:
    """Return a copy of Delta's table metadata in which a property is set, or removed if ``value`` is None.

    All other members are copied by name, because versions of Delta have different members.
    """
    members = range(metadata.productArity())
    reported = {metadata.productElementName(index): metadata.productElement(index) for index in members}
    properties = metadata.configuration()
    reported["configuration"] = properties.removed(name) if value is None else properties.updated(name, value)
    return metadata.copy(*reported.values())


def stored_version(transaction: Any, application: str) -> int:
    """Return the last transaction version that an application committed to the table, or -1 if there is none.

    After this call, the transaction conflicts with each other commit of the application. The version is read
    from the checksum of the last commit, because ``txnVersion`` would compute the table's state in a Spark
    job.
    """
    checksum = transaction.snapshot().checksumOpt()
    transactions = checksum.get().setTransactions() if checksum.isDefined() else None
    if transactions is None or not transactions.isDefined():
        return int(transaction.txnVersion(application))
    getattr(transaction.readTxn(), "$plus$eq")(application)
    entries = (transactions.get().apply(index) for index in range(int(transactions.get().size())))
    return next((int(entry.version()) for entry in entries if entry.appId() == application), -1)


def _file_count(snapshot: Any) -> int:
    # The commit's checksum has the number. ``numOfFiles`` would compute the table's state in a Spark job.
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles())


@contextmanager
def user_metadata(session: SparkSession, text: str) -> Iterator[None]:
    """Set ``text`` as the user metadata of all commits that ``session`` makes inside the block."""
    session.conf.set(USER_METADATA, text)
    try:
        yield
    finally:
        session.conf.unset(USER_METADATA)


def _parse_commit(version: int, line: str) -> Commit:
    info = json.loads(line).get("commitInfo") or {}
    metrics = info.get("operationMetrics") or {}
    parameters = info.get("operationParameters") or {}
    return Commit(
        version=version,
        operation=str(info.get("operation", "")),
        read_version=info.get("readVersion"),
        metadata=info.get("userMetadata"),
        metrics={name: int(number) for name, number in metrics.items() if str(number).isdigit()},
        restored_version=_number(parameters.get("version")),
        overwrites=parameters.get("mode") == "Overwrite" and "predicate" not in parameters,
    )


def _number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() else None


# Java's exceptions if the path cannot be used as configured: no file system for its scheme, or no permission.
_UNUSABLE_PATH: Final = frozenset(
    {
        "java.lang.ClassNotFoundException",
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
        "org.apache.hadoop.security.AccessControlException",
        "java.nio.file.AccessDeniedException",
    }
)

# Java class (or superclass) of an exception or one of its causes, tidesink's error class, and the message.
# The first match is used. All of Delta's conflicts are ConcurrentModificationExceptions.
_CLASSES: Final[tuple[tuple[str, type[TidesinkError], str], ...]] = (
    (
        "java.util.ConcurrentModificationException",
        TransientTargetError,
        "Another writer committed to the table at the same time, so nothing of this batch was written and it "
        "is tried again",
    ),
    (
        "org.apache.spark.sql.delta.schema.InvariantViolationException",
        TargetError,
        "A row of the batch has no key or violates a constraint of the table, so nothing was written. "
        "Correct the row at the source, or drop the table's constraint",
    ),
    (
        "org.apache.spark.sql.AnalysisException",
        TargetError,
        "Delta refuses the statement, so nothing was written. Check whether another program changed the "
        "table",
    ),
)


def translated(exc: BaseException, *, table: str) -> TidesinkError:
    """Return the error to raise for a Spark exception during a statement that commits.

    The exceptions in ``_CLASSES`` are only raised before the commit. After any other exception, it is unknown
    whether the commit happened.
    """
    names = tuple(class_names(exc))
    # If rows cannot be read, the job ends before anything is committed.
    refused = row_not_stored(exc) or task_error(exc)
    if refused is not None:
        return refused.with_context(table=table)
    short = summary(exc)
    for java_class, error, message in _CLASSES:
        if java_class in names:
            return error(f"{message} ({short}).", table=table)
    return CommitUnknownError(
        f"The commit was interrupted, so it is unknown whether it happened ({short}). The worker reads the "
        "progress "
        "at the target to find out.",
        table=table,
    )


def staging_error(exc: BaseException, *, table: str) -> TidesinkError:
    """Return the error to raise for a Spark exception while files were written. Nothing is committed yet."""
    refused = row_not_stored(exc) or task_error(exc)
    return refused.with_context(table=table) if refused is not None else reading_error(exc, table=table)


def reading_error(exc: BaseException, *, table: str) -> TidesinkError:
    """Return the error to raise for a Spark exception while the table was only read."""
    names = tuple(class_names(exc))
    if _UNUSABLE_PATH.intersection(names):
        return TargetError(
            f"target.path cannot be used ({summary(exc)}). Check that spark.conf adds the jars of its file "
            "system, and that this user may write there.",
            table=table,
        )
    if "org.apache.spark.sql.AnalysisException" in names:
        return TargetError(f"Delta cannot read the table ({summary(exc)}).", table=table)
    return TransientTargetError(
        f"The table cannot be read now ({summary(exc)}). Check that target.path can be reached.", table=table
    )
