"""Iceberg's table through the JVM, and its errors."""

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
    """A table as it was at one moment: Java's ``Table`` and ``TableMetadata``.

    A commit on it is refused where the table is no longer what it was. Snapshots are Java's ``Snapshot``.
    ``mapper`` (Java's) makes JSON: a map is one answer, not several for each of its keys. To iterate over one
    of Java's collections from Python takes 10 ms or more, since its end is an exception there.
    """

    table: Any
    metadata: Any
    mapper: Any

    @property
    def head(self) -> int | None:
        """The snapshot that readers see; None where the table never had one."""
        return self.branch_head(MAIN)

    @property
    def uuid(self) -> str:
        """The table's own name, which a table made again under the same name does not have."""
        return str(self.metadata.uuid())

    @property
    def version(self) -> int:
        """The format's."""
        return int(self.metadata.formatVersion())

    def branch_head(self, branch: str) -> int | None:
        """The newest snapshot of a branch; None where there is no such branch."""
        reference = self.metadata.ref(branch)
        return None if reference is None else int(reference.snapshotId())

    def branches(self) -> tuple[str, ...]:
        """The names of branches and tags."""
        return tuple(self._keys(self.metadata.refs()))

    def spec_numbers(self) -> tuple[int, ...]:
        """The numbers of the partition specs that the table has and had."""
        return tuple(self._keys(self.metadata.specsById()))

    def property(self, name: str) -> str | None:
        """A table property."""
        return self._properties.get(name)

    def properties(self, prefix: str) -> dict[str, str]:
        """The table properties whose names begin with a prefix, by what follows it."""
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
        """Whether a snapshot, made on what readers see, can still become the newest."""
        newer = int(self.metadata.lastSequenceNumber()) < int(snapshot.sequenceNumber())
        # Format 3 numbers rows.
        return newer and (self.version < 3 or snapshot.firstRowId() is not None)

    def snapshot(self, number: int | None) -> Any:
        """A snapshot by its number; None where it is expired."""
        return None if number is None else self.metadata.snapshot(number)

    def lineage(self) -> Iterator[Any]:
        """The snapshots that readers see and saw before, newest first, down to what is expired."""
        snapshot = self.snapshot(self.head)
        while snapshot is not None:
            yield snapshot
            snapshot = self.snapshot(snapshot.parentId())

    def snapshot_count(self) -> int:
        """How many snapshots the metadata hold."""
        return int(self.metadata.snapshots().size())

    @cached_property
    def totals(self) -> Mapping[str, int]:
        """The numbers of the summary of what readers see."""
        snapshot = self.snapshot(self.head)
        return {} if snapshot is None else self.numbers(snapshot)

    def numbers(self, snapshot: Any) -> Mapping[str, int]:
        """The numbers of a snapshot's own summary; what it does not name is missing."""
        found = self._texts(snapshot.summary()).items()
        return {name: int(text) for name, text in found if text.isdigit()}


class JvmTable:
    """The table named ``location`` (quoted, with its catalog), which need not exist yet.

    ``java`` is Iceberg's package.
    """

    def __init__(self, session: SparkSession, location: str) -> None:
        self._session = session
        jvm: Any = session._jvm
        self._types = jvm.org.apache.spark.sql.types
        self.java = jvm.org.apache.iceberg
        self.location = location

    @property
    def exists(self) -> bool:
        """True when there is a table."""
        return self._session.catalog.tableExists(self.location)

    def state(self) -> TableState:
        """The latest metadata, read now."""
        table = self.java.spark.Spark3Util.loadIcebergTable(self._session._jsparkSession, self.location)
        return TableState(table, table.operations().current(), self._mapper)

    @cached_property
    def _mapper(self) -> Any:
        return self.java.util.JsonUtil.mapper()

    def commit(self, base: TableState, change: Callable[[Any], object]) -> None:
        """Commit what ``change`` does to a builder of metadata, where the table is still at ``base``.

        Raises what Java raises; CommitFailedException where another commit came first.
        """
        builder = self.java.TableMetadata.buildFrom(base.metadata)
        change(builder)
        base.table.operations().commit(base.metadata, builder.build())

    def branch_at(self, snapshot: int, *, keep: int) -> Any:
        """A reference that keeps a snapshot from expiry, and ``keep`` of those that led to it."""
        return self.java.SnapshotRef.branchBuilder(snapshot).minSnapshotsToKeep(keep).build()

    def tag_at(self, snapshot: int, *, age: int) -> Any:
        """A reference that keeps one snapshot from expiry until it is older than ``age`` milliseconds."""
        return self.java.SnapshotRef.tagBuilder(snapshot).maxRefAgeMs(age).build()

    def columns(self, state: TableState) -> dict[str, str]:
        """The columns by name, as Spark DDL types."""
        from pyspark.sql.types import StructType

        found = self.java.spark.SparkSchemaUtil.convert(state.metadata.schema())
        schema = StructType.fromJson(json.loads(found.json()))
        return {field.name: field.dataType.simpleString() for field in schema.fields}

    def nullable(self, state: TableState) -> tuple[str, ...]:
        """The columns that take NULL."""
        fields = self.java.spark.SparkSchemaUtil.convert(state.metadata.schema()).fields()
        return tuple(str(field.name()) for field in fields if field.nullable())

    def type_of(self, ddl: str) -> Any:
        """Java's type of a Spark DDL type."""
        found = self.java.spark.SparkSchemaUtil.convert(self._types.DataType.fromDDL(ddl))
        return found.asStruct() if ddl.startswith("struct<") else found  # Java makes a schema of a struct


_ICEBERG: Final = "org.apache.iceberg.exceptions."
# Another commit came first, and ours did not happen.
CONFLICT: Final = f"{_ICEBERG}CommitFailedException"
# What a commit was to change is not there as it was.
INVALID: Final = f"{_ICEBERG}ValidationException"
# The catalog cannot be used as things are: a class or a file system is missing, or a right.
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
    """The error to raise for an exception of Spark while rows were staged: nothing is visible of them."""
    # Where rows cannot be read the job ends before anything is committed.
    refused = row_not_stored(exc) or task_error(exc)
    if refused is not None:
        return refused.with_context(table=table)
    if _FOR_GOOD.intersection(class_names(exc)):
        return TargetError(
            f"Iceberg does not take the batch, and nothing was written ({summary(exc)}): a row has no key, "
            "or the table was changed by another program",
            table=table,
        )
    return TransientTargetError(f"nothing was written, try again ({summary(exc)})", table=table)


def commit_error(exc: BaseException, *, table: str) -> TidesinkError:
    """The error to raise for an exception of the one commit that makes rows and progress visible."""
    if is_conflict(exc):
        return TransientTargetError("others commit to the table; nothing was written, try again", table=table)
    return CommitUnknownError(
        "the commit was cut off and may have happened: ask for the committed progress first "
        f"({summary(exc)})",
        table=table,
    )


def reading_error(exc: BaseException, *, table: str | None) -> TidesinkError:
    """The error to raise for an exception of Spark while nothing was being written."""
    names = frozenset(class_names(exc))
    if _UNUSABLE & names:
        return ConfigError(
            f"target.catalog cannot be used ({summary(exc)}): has Spark the jars of the catalog and of its "
            "file system under spark.conf, and may this user read and write there?",
            table=table,
        )
    if "org.apache.spark.sql.AnalysisException" in names:
        return TargetError(f"Iceberg cannot read the table ({summary(exc)})", table=table)
    return TransientTargetError(f"the catalog or the table cannot be read now ({summary(exc)})", table=table)


def is_conflict(exc: BaseException) -> bool:
    """True where another commit came first, so that ours did not happen."""
    return CONFLICT in class_names(exc)
