"""Delta's log, read through the JVM, and Delta's errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

from tidesink.errors import CommitUnknownError, TargetError, TidesinkError, TransientTargetError
from tidesink.sinks.spark.errors import class_names, is_java, row_not_stored, summary, task_error
from tidesink.sinks.state.progress import BATCHES_PER_EPOCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The operation of a commit made by ``commit_marker``. After a "Manual Update" Delta would compute the
# table's whole state for the commit's checksum (RecordChecksum, Delta 4.3), which takes half a second.
MARKER: Final = "Empty Commit"
USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"


@dataclass(frozen=True)
class Commit:
    """What one version of the table says of itself.

    ``read_version`` is the snapshot its transaction read; None where the writer did not say.
    ``restored_version`` is what a RESTORE went back to, where it was asked by version. ``overwrites``: the
    commit threw all rows away and wrote others.
    """

    version: int
    operation: str
    read_version: int | None = None
    metadata: str | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)
    restored_version: int | None = None
    overwrites: bool = False


class DeltaLog:
    """The log of the table at ``path``, which need not exist yet."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        self._jvm: Any = session._jvm
        self._java_session: Any = session._jsparkSession
        self.path = path

    @property
    def exists(self) -> bool:
        """True when there is a table."""
        return self.latest() >= 0

    def latest(self) -> int:
        """The latest version, looked up now; -1 where there is no table."""
        return int(self._ask(lambda snapshot: snapshot.version()))

    def file_count(self) -> int:
        """How many data files the latest version has."""
        return int(self._ask(_file_count))

    def property(self, name: str) -> str | None:
        """A table property of the latest version."""
        found = self._ask(lambda snapshot: snapshot.metadata().configuration().get(name))
        return str(found.get()) if found.isDefined() else None

    def supports(self, feature: str) -> bool:
        """Whether the latest version's readers and writers must know a feature."""
        found = self._ask(lambda snapshot: snapshot.protocol().implicitlyAndExplicitlySupportedFeatures())
        names = found.iterator()
        while names.hasNext():
            if str(names.next().name()) == feature:
                return True
        return False

    def schema(self) -> str:
        """The latest version's schema as Spark's JSON."""
        return str(self._ask(lambda snapshot: snapshot.metadata().schema().json()))

    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the latest version is partitioned by."""
        found = self._ask(lambda snapshot: snapshot.metadata().partitionColumns())
        return tuple(str(found.apply(at)) for at in range(int(found.size())))

    def commit(self, version: int) -> Commit | None:
        """What a version says of itself; None where its file was cleaned away."""
        line = self._first_line(version)
        return None if line is None else _parse_commit(version, line)

    def newest_first(self, *, at: int | None = None, above: int = -1) -> Iterator[Commit | None]:
        """The commits from ``at`` (default: the latest) down to the one after ``above``.

        Ends with None at a commit that was cleaned away.
        """
        for version in range(self.latest() if at is None else at, above, -1):
            commit = self.commit(version)
            yield commit
            if commit is None:
                return

    def transaction_version(self, application: str) -> int | None:
        """The greatest transaction version committed for an application; it survives log clean-up."""
        found = self._ask(lambda snapshot: snapshot.transactions().get(application))
        return int(found.get()) if found.isDefined() else None

    def next_version(self, epoch: int) -> int:
        """A transaction version of an epoch for what is no batch: above all before it.

        The table's own version has grown with each commit, and so grows this.
        """
        return epoch * BATCHES_PER_EPOCH + self.latest()

    def applications(self) -> tuple[str, ...]:
        """The applications that ever committed a transaction version."""
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
        """Commit a transaction version and words, without data; the table version it made.

        None, and no commit, where the table is no longer at version ``read_at``, or a transaction version
        not below this one is there. Another commit for the same application since the snapshot is a
        conflict, which Delta raises. ``fences`` are transaction versions of other applications, whose
        commits up to them Delta refuses or skips from here on.
        """
        package = self._jvm.org.apache.spark.sql.delta
        with self.active():
            transaction = self.java().startTransaction()
            if read_at is not None and transaction.readVersion() != read_at:
                return None
            if transaction.txnVersion(application) >= version:  # the read makes others' commits conflict
                return None
            operation = getattr(getattr(package, "DeltaOperations$EmptyCommit$"), "MODULE$")
            actions = self.transactions({application: version, **(fences or {})})
            with user_metadata(self._session, metadata):
                return int(transaction.commit(actions, operation))

    def put_property(
        self, application: str, version: int, name: str, value: str | None, *, words: str
    ) -> bool:
        """Commit a property with a transaction version, which ALTER TABLE does not take; whether it did.

        None takes the property away. Refused and skipped as ``commit_marker`` is.
        """
        with self.active():
            transaction = self.java().startTransaction()
            if transaction.txnVersion(application) >= version:
                return False
            metadata = _with_property(transaction.metadata(), name, value)
            transaction.updateMetadata(metadata, getattr(transaction, "updateMetadata$default$2")())
            operation = self._put_operation(metadata.configuration().empty(), name, value)
            with user_metadata(self._session, words):
                transaction.commit(self.transactions({application: version}), operation)
        return True

    def _put_operation(self, none: Any, name: str, value: str | None) -> Any:
        """What the commit of a property says it is; ``none``: no properties, as Scala has them."""
        package = self._jvm.org.apache.spark.sql.delta
        if value is None:
            return getattr(package, "DeltaOperations$UnsetTableProperties")(
                java_sequence(self._jvm, [name]), True
            )
        return getattr(package, "DeltaOperations$SetTableProperties")(none.updated(name, value))

    def transactions(self, versions: Mapping[str, int]) -> Any:
        """Delta's actions that say transaction versions of applications, now."""
        package, now = self._jvm.org.apache.spark.sql.delta, self._jvm.scala.Some(int(time.time() * 1000))
        set_transaction = package.actions.SetTransaction
        return java_sequence(
            self._jvm, [set_transaction(name, version, now) for name, version in versions.items()]
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """For what is asked of Delta itself."""
        # Delta's transactions read their settings from the thread's active session.
        sessions = self._jvm.org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(self._java_session)
        try:
            yield
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    def java(self) -> Any:
        """Delta's own object."""
        # Asked again each time: Delta caches it by path, and a table made again gets a new one.
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._java_session, self.path)

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """An answer of the latest snapshot; the first who asks makes it compute its state by our settings."""
        with self.active():
            log = self.java()
            latest = log.update(False, getattr(log, "update$default$2")(), getattr(log, "update$default$3")())
            return question(latest)

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
    """A Scala sequence of Java objects."""
    found = jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()


def _with_property(metadata: Any, name: str, value: str | None) -> Any:
    """A table's metadata with a property, or without it; its other members are whatever this Delta has."""
    members = range(metadata.productArity())
    reported = {metadata.productElementName(at): metadata.productElement(at) for at in members}
    known = metadata.configuration()
    reported["configuration"] = known.removed(name) if value is None else known.updated(name, value)
    return metadata.copy(*reported.values())


def _file_count(snapshot: Any) -> int:
    # The commit's checksum has the number; ``numOfFiles`` computes the table's state for it in a Spark job.
    checksum = snapshot.checksumOpt()
    return int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles())


@contextmanager
def user_metadata(session: SparkSession, text: str) -> Iterator[None]:
    """Commits of a session carry ``text`` while this holds."""
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


# The path cannot be used as things are: no file system for its scheme, or no right to it.
_UNUSABLE_PATH: Final = frozenset(
    {
        "java.lang.ClassNotFoundException",
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
        "org.apache.hadoop.security.AccessControlException",
        "java.nio.file.AccessDeniedException",
    }
)

# Delta's conflicts are all Java ConcurrentModificationExceptions.
# Java class (or superclass) anywhere in the chain of causes -> our class. The first row that matches wins.
_CLASSES: Final[tuple[tuple[str, type[TidesinkError], str], ...]] = (
    (
        "java.util.ConcurrentModificationException",
        TransientTargetError,
        "another writer committed to the table at the same time; nothing of this batch was written",
    ),
    (
        "org.apache.spark.sql.delta.schema.InvariantViolationException",
        TargetError,
        "a row of the batch has no key or breaks a constraint of the table, and nothing was written",
    ),
    (
        "org.apache.spark.sql.AnalysisException",
        TargetError,
        "Delta refuses the statement, and nothing was written; was the table changed by another program?",
    ),
)


def translated(exc: BaseException, *, table: str) -> TidesinkError:
    """The error to raise for an exception of Spark while a commit was under way.

    Classes that are known to come before the commit say so; after any other the commit may have happened.
    """
    names = tuple(class_names(exc))
    # Where rows cannot be read the job ends before anything is committed.
    refused = row_not_stored(exc) or task_error(exc)
    if refused is not None:
        return refused.with_context(table=table)
    short = summary(exc)
    for java_class, error, message in _CLASSES:
        if java_class in names:
            return error(f"{message} ({short})", table=table)
    return CommitUnknownError(
        f"the commit was cut off and may have happened: ask for the committed progress first ({short})",
        table=table,
    )


def staging_error(exc: BaseException, *, table: str) -> TidesinkError:
    """The error to raise for an exception of Spark while files were written: nothing is committed."""
    refused = row_not_stored(exc) or task_error(exc)
    return refused.with_context(table=table) if refused is not None else reading_error(exc, table=table)


def reading_error(exc: BaseException, *, table: str) -> TidesinkError:
    """The error to raise for an exception of Spark while nothing was being written."""
    names = tuple(class_names(exc))
    if _UNUSABLE_PATH.intersection(names):
        return TargetError(
            f"target.path cannot be used ({summary(exc)}): has Spark the jars of its file system under "
            "spark.conf, and may this user write there?",
            table=table,
        )
    if "org.apache.spark.sql.AnalysisException" in names:
        return TargetError(f"Delta cannot read the table ({summary(exc)})", table=table)
    return TransientTargetError(f"the table cannot be read now ({summary(exc)})", table=table)
