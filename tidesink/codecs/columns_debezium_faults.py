"""What a Debezium envelope is, asked of its decoded members: a row change, a message, or nothing to apply.

The frame has: op, image, before_key, row_key, source_db, source_schema, source_table; for watermarks
source_connector and source_commit_ts too.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_base import BAD, MESSAGE, TRUNCATE, WATERMARK
from tidesink.codecs.columns_faults import any_null, fault
from tidesink.codecs.debezium.envelope import TICDC
from tidesink.errors import SchemaMismatchError, UnnamedRowError
from tidesink.events import TableId

Faults = list[tuple[Column, Column]]

_UPSERTS: Final = ("c", "r", "u")


def is_delete() -> Column:
    """Whether the envelope says that the row is gone; null without an op."""
    return F.col("op") == "d"


def watermark_faults() -> Faults:
    """A record of TiCDC's (b813e76) with ``op`` m: all changes up to its commit_ts are written."""
    said = F.coalesce((F.col("op") == "m") & (F.col("source_connector") == TICDC), F.lit(False))
    nothing = "the watermark has no source.commit_ts"
    return [
        (said & F.col("source_commit_ts").isNull(), fault(BAD, SchemaMismatchError, nothing)),
        (said, fault(WATERMARK)),
    ]


def envelope_faults(table: TableId) -> Faults:
    """An envelope that is no change of a row of this table, each condition never null."""
    op = F.coalesce(F.col("op"), F.lit(""))
    upsert = op.isin(*_UPSERTS)
    said = F.concat_ws(".", F.coalesce(F.col("source_schema"), F.col("source_db")), F.col("source_table"))
    own = (F.col("source_table") == table.name) & (
        (F.col("source_schema") == table.schema) | (F.col("source_db") == table.schema)
    )
    unknown = F.concat(F.lit("op is '"), F.substring(op, 1, 40), F.lit("': none of c, r, u, d, t, m"))
    other = F.concat(
        F.lit("the change is of "),
        said,
        F.lit(
            f", and this topic is read as {table}: a debezium topic must hold one table; name it under tables"
        ),
    )
    return [
        (op == "m", fault(MESSAGE)),
        (~(upsert | op.isin("d", "t")), fault(BAD, SchemaMismatchError, unknown)),
        (~F.coalesce(own, F.lit(False)), fault(BAD, SchemaMismatchError, other)),
        (op == "t", fault(TRUNCATE)),
        (
            upsert & F.col("image").isNull(),
            fault(BAD, SchemaMismatchError, F.concat(F.lit("an event with op "), op, F.lit(" has no after"))),
        ),
    ]


def unnamed_faults(names: list[str]) -> Faults:
    """A row without its key."""
    reason = (
        f"a key column ({', '.join(names)}) is null or not in the record, so the change names no row: set "
        "keys to columns that every record has; a delete needs them in its key or, with REPLICA IDENTITY "
        "FULL, in its old row"
    )
    return [(any_null("row_key", names), fault(BAD, UnnamedRowError, reason))]
