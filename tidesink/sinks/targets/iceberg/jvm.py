"""Access to Iceberg's table in the JVM, and translation of its errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import CommitUnknownError, ConfigError, TargetError, TidesinkError, TransientTargetError
from tidesink.sinks.spark.errors import class_names, row_not_stored, summary, task_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MAIN: Final = "main"


@dataclass(frozen=True)
class TableState:
    """A table at one moment: Java's ``Table`` and ``TableMetadata``. Snapshots are Java's ``Snapshot``.

    A commit based on it is refused if the table has changed since.
    ``mapper``: Java's JSON mapper. It transfers a map in one answer instead of several per key. Iterating
        over a Java collection from Python takes 10 ms or more, because its end is an exception there.
    """

    table: Any
    metadata: Any
    mapper: Any

    @property
    def head(self) -> int | None:
        """The snapshot that readers see; None if the table never had a snapshot."""
        return self.branch_head(MAIN)

    @property
    def uuid(self) -> str:
        """The table's id. A table that is created again under the same name has another id."""
        return str(self.metadata.uuid())

    @property
    def version(self) -> int:
        """The format version."""
        return int(self.metadata.formatVersion())

    def branch_head(self, branch: str) -> int | None:
        """Return the newest snapshot of a branch; None if the branch does not exist."""
        reference = self.metadata.ref(branch)
        return None if reference is None else int(reference.snapshotId())

    def branches(self) -> tuple[str, ...]:
        """Return the names of branches and tags."""
        return tuple(self._keys(self.metadata.refs()))

    def spec_numbers(self) -> tuple[int, ...]:
        """Return the ids of the table's current and earlier partition specs."""
        return tuple(self._keys(self.metadata.specsById()))

    def property(self, name: str) -> str | None:
        """Return a table property."""
        return self._properties.get(name)

    def properties(self, prefix: str) -> dict[str, str]:
        """Return the table properties whose names begin with a prefix, by the rest of the name."""
        found = self._properties.items()
        return {name.removeprefix(prefix): text for name, text in found if name.startswith(prefix)}

    @cached_property
    def _properties(self) -> dict[str, str]:
        return self._texts(self.metadata.properties())

    def _keys(self, given: Any) -> list[Any]:
        found: list[Any] = json.loads(self.mapper.writeValueAsString(given.keySet()))
        return found

    def _texts(self, given: Any) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.mapper.writeValueAsString(given))
        return found

    def takes(self, snapshot: Any) -> bool:
        """Return True if a snapshot that was created on the visible one can still become the newest."""
        newer = int(self.metadata.lastSequenceNumber()) < int(snapshot.sequenceNumber())
        # Format 3 assigns row ids.
        return newer and (self.version < 3 or snapshot.firstRowId() is not None)

    def snapshot(self, number: int | None) -> Any:
        """Return a snapshot by its id; None if it is expired."""
        return None if number is None else self.metadata.snapshot(number)

    def lineage(self) -> Iterator[Any]:
        """Yield the visible snapshot and its ancestors, newest first, until one is expired."""
        snapshot = self.snapshot(self.head)
        while snapshot is not None:
            yield snapshot
            snapshot = self.snapshot(snapshot.parentId())

    def snapshot_count(self) -> int:
        """Return the number of snapshots in the metadata."""
        return int(self.metadata.snapshots().size())

    @cached_property
    def totals(self) -> Mapping[str, int]:
        """The numbers of the visible snapshot's summary."""
        snapshot = self.snapshot(self.head)
        return {} if snapshot is None else self.numbers(snapshot)

    def numbers(self, snapshot: Any) -> Mapping[str, int]:
        """Return the numbers of a snapshot's own summary."""
        found = self._texts(snapshot.summary()).items()
        return {name: int(text) for name, text in found if text.isdigit()}


class JvmTable:
    """The table named ``location`` (quoted, with its catalog), which need not exist yet.

    ``java``: Iceberg's Java package.
    """

    def __init__(self, session: SparkSession, location: str) -> None:
        self._session = session
        jvm: Any = session._jvm
        self._types = jvm.org.apache.spark.sql.types
        self.java = jvm.org.apache.iceberg
        self.location = location

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        return self._session.catalog.tableExists(self.location)

    def state(self) -> TableState:
        """Read the latest metadata."""
        table = self.java.spark.Spark3Util.loadIcebergTable(self._session._jsparkSession, self.location)
        return TableState(table, table.operations().current(), self._mapper)

    @cached_property
    def _mapper(self) -> Any:
        return self.java.util.JsonUtil.mapper()

    def commit(self, base: TableState, change: Callable[[Any], object]) -> None:
        """Commit the changes that ``change`` makes to a metadata builder, if the table is still at ``base``.

        Raises Java's exceptions; CommitFailedException if another commit came first.
        """
        builder = self.java.TableMetadata.buildFrom(base.metadata)
        change(builder)
        base.table.operations().commit(base.metadata, builder.build())

    def branch_at(self, snapshot: int, *, keep: int) -> Any:
        """Return a branch reference that keeps a snapshot, and ``keep`` snapshots in total, from expiry."""
        return self.java.SnapshotRef.branchBuilder(snapshot).minSnapshotsToKeep(keep).build()

    def tag_at(self, snapshot: int, *, age: int) -> Any:
        """Return a tag reference that keeps a snapshot from expiry until it is ``age`` milliseconds old."""
        return self.java.SnapshotRef.tagBuilder(snapshot).maxRefAgeMs(age).build()

    def columns(self, state: TableState) -> dict[str, str]:
        """Return the columns as Spark DDL types by name."""
        from pyspark.sql.types import StructType

        found = self.java.spark.SparkSchemaUtil.convert(state.metadata.schema())
        schema = StructType.fromJson(json.loads(found.json()))
        return {field.name: field.dataType.simpleString() for field in schema.fields}

    def nullable(self, state: TableState) -> tuple[str, ...]:
        """Return the nullable columns."""
        fields = self.java.spark.SparkSchemaUtil.convert(state.metadata.schema()).fields()
        return tuple(str(field.name()) for field in fields if field.nullable())

    def type_of(self, ddl: str) -> Any:
        """Return Java's type for a Spark DDL type."""
        found = self.java.spark.SparkSchemaUtil.convert(self._types.DataType.fromDDL(ddl))
        return found.asStruct() if ddl.startswith("struct<") else found  # Java converts a struct to a schema


_ICEBERG: Final = "org.apache.iceberg.exceptions."
# Another commit came first, and ours did not happen.
CONFLICT: Final = f"{_ICEBERG}CommitFailedException"
# An object that a commit was to change has changed or no longer exists.
INVALID: Final = f"{_ICEBERG}ValidationException"
# The catalog cannot be used as configured: a class, a file system or a right is missing.
_UNUSABLE: Final = frozenset(
    {
        "java.lang.ClassNotFoundException",
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
        "org.apache.hadoop.security.AccessControlException",
        "java.nio.file.AccessDeniedException",
        f"{_ICEBERG}NotAuthorizedException",
        f"{_ICEBERG}ForbiddenException",
    }
)
# The same batch would fail again.
_FOR_GOOD: Final = frozenset(
    {
        "org.apache.spark.sql.AnalysisException",
        "org.apache.spark.SparkRuntimeException",
        "org.apache.spark.SparkArithmeticException",
        "org.apache.spark.SparkNumberFormatException",
        "org.apache.spark.SparkDateTimeException",
        "java.lang.NullPointerException",
    }
)


def staging_error(exc: BaseException, *, table: str) -> TidesinkError:
    """Return the error for a Spark exception while rows were staged. Nothing of them is visible."""
    # If rows cannot be read, the job ends before anything is committed.
    refused = row_not_stored(exc) or task_error(exc)
    if refused is not None:
        return refused.with_context(table=table)
    if _FOR_GOOD.intersection(class_names(exc)):
        return TargetError(
            f"Iceberg refuses the batch, and nothing was written ({summary(exc)}). Either a row has no key, "
            "or another program changed the table.",
            table=table,
        )
    return TransientTargetError(f"Nothing was written ({summary(exc)}). Try again.", table=table)


def commit_error(exc: BaseException, *, table: str) -> TidesinkError:
    """Return the error for an exception of the commit that publishes rows and progress."""
    if is_conflict(exc):
        return TransientTargetError(
            "Others commit to the table. Nothing was written. Try again.", table=table
        )
    return CommitUnknownError(
        f"The commit was interrupted and may have happened ({summary(exc)}). Read the committed progress "
        "before anything else.",
        table=table,
    )


def reading_error(exc: BaseException, *, table: str | None) -> TidesinkError:
    """Return the error for a Spark exception while nothing was being written."""
    names = frozenset(class_names(exc))
    if _UNUSABLE & names:
        return ConfigError(
            f"target.catalog cannot be used ({summary(exc)}). Check that spark.conf adds the jars of the "
            "catalog and of its file system, and that this user may read and write there.",
            table=table,
        )
    if "org.apache.spark.sql.AnalysisException" in names:
        return TargetError(f"Iceberg cannot read the table ({summary(exc)}).", table=table)
    return TransientTargetError(f"The catalog or the table cannot be read now ({summary(exc)}).", table=table)


def is_conflict(exc: BaseException) -> bool:
    """Return True if another commit came first, so that ours did not happen."""
    return CONFLICT in class_names(exc)
