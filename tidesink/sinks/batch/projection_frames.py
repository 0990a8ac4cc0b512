"""What a table's config asks of Spark: its row filter, and the rows and columns of a frame to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import BooleanType

from tidesink.errors import ConfigError
from tidesink.sinks.batch.filtering import FILTERED, RowFilterRule
from tidesink.sinks.batch.schema_changes import SchemaDecision
from tidesink.sinks.spark.payloads import ROW_KINDS
from tidesink.typemap.projection import RowFilter
from tidesink.typemap.target_schema import TableShape, columns_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import TableConfig


_ROW: Final = "_row"


def condition(row_filter: RowFilter, shape: TableShape) -> str:
    """The filter's text over a struct ``_row`` of a shape's columns. Its end may be a comment."""
    names = {name: column.name for name, column in shape.by_name.items()}
    return f"(\n{row_filter.bound(_ROW, names)}\n)"


def filter_rule(row_filter: RowFilter, shape: TableShape, session: SparkSession) -> RowFilterRule:
    """A filter over rows of a shape, as the tasks of a range apply it.

    Raises: as ``check_condition``.
    """
    check_condition(row_filter, shape, session)
    named = {shape.by_name[name.lower()].name for name in row_filter.columns}
    columns = tuple(column for column in shape.columns if column.name in named)
    return RowFilterRule(
        row_filter.text,
        _tried(condition(row_filter, shape)),
        tuple(column.name for column in columns),
        columns_ddl(columns),
    )


def check_condition(row_filter: RowFilter, shape: TableShape, session: SparkSession) -> None:
    """Have Spark look at the filter, without a row.

    Raises:
        ConfigError: Spark cannot take it, or it is no condition.
    """
    row = F.lit(None).cast(f"struct<{shape.ddl}>").alias(_ROW)
    try:
        found = session.range(0).select(row).select(F.expr(condition(row_filter, shape))).schema[0].dataType
    except PySparkException as exc:
        said = str(exc).splitlines()[0]
        raise ConfigError(
            f"filter: Spark does not take {row_filter.text!r}: {said}", table=str(shape.table)
        ) from exc
    if not isinstance(found, BooleanType):
        raise ConfigError(
            f"filter: {row_filter.text!r} is a value of type {found.simpleString()} and no condition",
            table=str(shape.table),
        )


def _tried(text: str) -> str:
    said = f"coalesce(cast({text} as string), 'null')"
    return f"cast(get(transform(array({FILTERED}), {_ROW} -> try_to_binary({said}, 'utf-8')), 0) as string)"


def on_delete(settings: TableConfig, shape: TableShape) -> tuple[str, ...]:
    """The columns of ``shape`` that a delete of the table writes (``ReducedBatch.on_delete``)."""
    names = settings.metadata_columns.values() if settings.deletes == "soft" else ()
    return tuple(name for name in names if name.lower() in shape.by_name)


def omitting(frame: DataFrame, schema_decision: SchemaDecision) -> DataFrame:
    """The rows of a reduced frame with the columns that the target gets."""
    if not schema_decision.omitted:
        return frame
    after = F.col("after")
    given = [after.getField(column.name).alias(column.name) for column in schema_decision.given.columns]
    changed = {"after": F.when(after.isNotNull(), F.struct(*given))}
    if "_kept" in frame.columns:
        omitted = F.array(*(F.lit(name) for name in schema_decision.omitted))
        changed["_kept"] = F.array_except("_kept", omitted)
    return frame.withColumns(changed)


# A log's rows are not shuffled: as many files as the topic has partitions would be many small ones.
_ROWS_A_FILE: Final = 100_000


def rows_to_write(reduced: DataFrame, rows: int, settings: TableConfig) -> DataFrame:
    """The rows of a reduced frame that the target takes, in as few parts as are worth a file each."""
    found = rows_to_apply(reduced)
    return found.coalesce(1 + rows // _ROWS_A_FILE) if settings.mode == "append" else found


def rows_to_apply(reduced: DataFrame) -> DataFrame:
    """The rows of a reduced frame that a merge takes: upserts and deletes."""
    return reduced.where(F.col("_op").isin(*ROW_KINDS))
