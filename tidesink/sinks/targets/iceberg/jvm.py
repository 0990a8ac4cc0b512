"""Access to an Iceberg table through Iceberg's Java API, and conversion of its errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import CommitUnknownError, ConfigError, TargetError, TidesinkError, TransientTargetError
from tidesink.sinks.spark.errors import class_names, row_not_stored, summary, task_error
from tidesink.sinks.spark.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MAIN: Final = "main"


@dataclass(frozen=True)
class TableState:
    """The state of a table when it was read. A commit that is based on it fails if the table has changed
    since.

    ``table``, ``metadata``: Java's ``Table`` and ``TableMetadata``.
    ``mapper``: Java's JSON mapper, which transfers a whole map to Python in one call. Iterating over a Java
        collection from Python takes 10 ms or more, because its end is a Java exception.
    """

    table: Any
    metadata: Any
    mapper: Any

    @property
    def head(self) -> int | None:
        """The id of the snapshot that readers see; None if the table never had a snapshot."""
        return self.branch_head(MAIN)

    @property
    def uuid(self) -> str:
        """The table's UUID. A table that is created again under the same name has another UUID."""
        return str(self.metadata.uuid())

    @property
    def version(self) -> int:
        """The version of Iceberg's table format, such as 2."""
        return int(self.metadata.formatVersion())

    def branch_head(self, branch: str) -> int | None:
        """Return the id of the newest snapshot of a branch, or of a tag's snapshot; None if no branch or tag
        has this name.
        """
        reference = self.metadata.ref(branch)
        return None if reference is None else int(reference.snapshotId())

    def branches(self) -> tuple[str, ...]:
        """Return the names of the table's branches and tags."""
        return tuple(self._keys(self.metadata.refs()))

    def spec_numbers(self) -> tuple[int, ...]:
        """Return the ids of the table's current and earlier partition specs."""
        return tuple(self._keys(self.metadata.specsById()))

    def property(self, name: str) -> str | None:
        """Return the value of a table property; None if it is not set."""
        return self._properties.get(name)

    def properties(self, prefix: str) -> dict[str, str]:
        """Return the table properties whose names begin with ``prefix``, by the name without the prefix."""
        texts = self._properties.items()
        return {name.removeprefix(prefix): text for name, text in texts if name.startswith(prefix)}

    @cached_property
    def _properties(self) -> dict[str, str]:
        return self._texts(self.metadata.properties())

    def _keys(self, given: Any) -> list[Any]:
        keys: list[Any] = json.loads(self.mapper.writeValueAsString(given.keySet()))
        return keys

    def _texts(self, given: Any) -> dict[str, str]:
        texts: dict[str, str] = json.loads(self.mapper.writeValueAsString(given))
        return texts

    def takes(self, snapshot: Any) -> bool:
        """Return True if a snapshot that is not committed yet can still be added to the table.

        Its sequence number must be above the table's last one, and each commit by another writer raises the
        last one.
        """
        newer = int(self.metadata.lastSequenceNumber()) < int(snapshot.sequenceNumber())
        # In format 3, a snapshot must also have row ids.
        return newer and (self.version < 3 or snapshot.firstRowId() is not None)

    def snapshot(self, number: int | None) -> Any:
        """Return Java's ``Snapshot`` with an id; None if the snapshot is expired or the id is None."""
        return None if number is None else self.metadata.snapshot(number)

    def lineage(self) -> Iterator[Any]:
        """Yield the snapshot that readers see and its ancestors, newest first, until one is expired."""
        snapshot = self.snapshot(self.head)
        while snapshot is not None:
            yield snapshot
            snapshot = self.snapshot(snapshot.parentId())

    def snapshot_count(self) -> int:
        """Return the number of the table's snapshots that are not expired."""
        return int(self.metadata.snapshots().size())

    @cached_property
    def totals(self) -> Mapping[str, int]:
        """The numbers in the summary of the snapshot that readers see, such as ``total-records``."""
        snapshot = self.snapshot(self.head)
        return {} if snapshot is None else self.numbers(snapshot)

    def numbers(self, snapshot: Any) -> Mapping[str, int]:
        """Return the numbers in a snapshot's summary, by name, such as ``added-records``."""
        texts = self._texts(snapshot.summary()).items()
        return {name: int(text) for name, text in texts if text.isdigit()}


class JvmTable:
    """An Iceberg table in the JVM, which may not exist yet.

    ``location``: its quoted name with its catalog.
    ``java``: Iceberg's Java package ``org.apache.iceberg``.
    """

    def __init__(self, session: SparkSession, location: str) -> None:
        self._session = session
        jvm = java_names(session)
        self._types = jvm.org.apache.spark.sql.types
        self.java = jvm.org.apache.iceberg
        self.location = location

    @property
    def exists(self) -> bool:
        """True if the table exists."""
        return self._session.catalog.tableExists(self.location)

    def state(self) -> TableState:
        """Read and return the table's latest state."""
        table = self.java.spark.Spark3Util.loadIcebergTable(self._session._jsparkSession, self.location)
        return TableState(table, table.operations().current(), self._mapper)

    @cached_property
    def _mapper(self) -> Any:
        return self.java.util.JsonUtil.mapper()

    def commit(self, base: TableState, change: Callable[[Any], object]) -> None:
        """Commit changes of the table's metadata, if the table has not changed since it was in the state
        ``base``.

        ``change``: makes the changes on Java's metadata builder.

        Raises Java's exceptions, such as CommitFailedException if another writer committed in between.
        """
        builder = self.java.TableMetadata.buildFrom(base.metadata)
        change(builder)
        base.table.operations().commit(base.metadata, builder.build())

    def branch_at(self, snapshot: int, *, keep: int) -> Any:
        """Return Java's reference for a branch at a snapshot.

        ``keep``: least number of the branch's snapshots that are kept when snapshots are expired.
        """
        return self.java.SnapshotRef.branchBuilder(snapshot).minSnapshotsToKeep(keep).build()

    def tag_at(self, snapshot: int, *, age: int) -> Any:
        """Return Java's reference for a tag on a snapshot.

        The tag protects the snapshot until the snapshot is ``age`` milliseconds old.
        """
        return self.java.SnapshotRef.tagBuilder(snapshot).maxRefAgeMs(age).build()

    def columns(self, state: TableState) -> dict[str, str]:
        """Return the table's columns: Spark DDL type by name."""
        from pyspark.sql.types import StructType

        java_schema = self.java.spark.SparkSchemaUtil.convert(state.metadata.schema())
        schema = StructType.fromJson(json.loads(java_schema.json()))
        return {field.name: field.dataType.simpleString() for field in schema.fields}

    def nullable(self, state: TableState) -> tuple[str, ...]:
        """Return the names of the table's columns that accept NULL."""
        fields = self.java.spark.SparkSchemaUtil.convert(state.metadata.schema()).fields()
        return tuple(str(field.name()) for field in fields if field.nullable())

    def type_of(self, ddl: str) -> Any:
        """Return Iceberg's Java type for a Spark DDL type."""
        kind = self.java.spark.SparkSchemaUtil.convert(self._types.DataType.fromDDL(ddl))
        return kind.asStruct() if ddl.startswith("struct<") else kind  # Java converts a struct to a schema


_ICEBERG: Final = "org.apache.iceberg.exceptions."
# Java's exception if another writer committed in between, so that this commit did not happen.
CONFLICT: Final = f"{_ICEBERG}CommitFailedException"
# Java's exception if a file or vector that a commit was to change has changed or no longer exists.
INVALID: Final = f"{_ICEBERG}ValidationException"
# Java's exceptions if the catalog cannot be used as configured: a class, a file system or a privilege is
# missing.
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
# Java's exceptions after which the same batch would fail again.
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
    """Return the error to raise for a Spark exception while a batch was written. Nothing is published yet."""
    # If rows cannot be read, the job ends before anything is committed.
    refused = row_not_stored(exc) or task_error(exc)
    if refused is not None:
        return refused.with_context(table=table)
    if _FOR_GOOD.intersection(class_names(exc)):
        return TargetError(
            f"Iceberg refuses the batch, so nothing was written ({summary(exc)}). Check whether a row has "
            "no key, "
            "or another program changed the table.",
            table=table,
        )
    return TransientTargetError(
        f"Spark could not write the batch, so nothing was written ({summary(exc)}). The batch is tried "
        "again.",
        table=table,
    )


def commit_error(exc: BaseException, *, table: str) -> TidesinkError:
    """Return the error to raise for an exception of the commit that publishes rows and progress."""
    if is_conflict(exc):
        return TransientTargetError(
            "Another writer committed to the table at the same time, so nothing of this batch was written. "
            "The batch "
            "is tried again.",
            table=table,
        )
    return CommitUnknownError(
        f"The commit was interrupted, so it is unknown whether it happened ({summary(exc)}). The worker "
        "reads the "
        "progress at the target to find out.",
        table=table,
    )


def reading_error(exc: BaseException, *, table: str | None) -> TidesinkError:
    """Return the error to raise for a Spark exception while the table or the catalog was only read."""
    names = frozenset(class_names(exc))
    if _UNUSABLE & names:
        return ConfigError(
            f"target.catalog cannot be used ({summary(exc)}). Check that spark.conf adds the jars of the "
            "catalog and of its file system, and that this user may read and write there.",
            table=table,
        )
    if "org.apache.spark.sql.AnalysisException" in names:
        return TargetError(f"Iceberg cannot read the table ({summary(exc)}).", table=table)
    return TransientTargetError(
        f"The catalog or the table cannot be read now ({summary(exc)}). Check that the catalog and the "
        "table's storage can be reached.",
        table=table,
    )


def is_conflict(exc: BaseException) -> bool:
    """Return True if an exception means that a commit did not happen because another writer committed in
    between.
    """
    return CONFLICT in class_names(exc)
