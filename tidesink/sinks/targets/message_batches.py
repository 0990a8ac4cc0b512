"""What targets of messages have in common on the driver: the frame to send, and what is refused before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidesink.errors import SchemaRefusedError, TargetError, ValueNotStoredError
from tidesink.sinks.evolve import plan_evolution
from tidesink.sinks.shape import TableShape
from tidesink.sinks.targets.base import PLACE_COLUMNS, DeleteMode, EvolveResult, ReducedBatch
from tidesink.sinks.targets.message_rows import message_columns
from tidesink.sinks.targets.store_ledger import LedgerEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_WORD: Final = (
    "the source did not send the value of {columns}, since it did not change, and {protocol} has no word for "
    "that. Set REPLICA IDENTITY FULL on the table, or write debezium-json or debezium-avro, which have one"
)
_ANEW: Final = (
    "the source did not send the value of {columns}, and the row was deleted before it in the same batch: "
    "nobody has the value. Set REPLICA IDENTITY FULL on the table, and take a snapshot of the row"
)


def check_shape(shape: TableShape, delete_mode: DeleteMode) -> None:
    """Refuse a table that cannot be sent as messages.

    Raises:
        SchemaRefusedError: it has no key, or is to be soft-deleted from.
    """
    if not shape.keys:
        raise SchemaRefusedError(
            "the table has no key that tells its rows apart: set keys in the config to columns that do",
            table=str(shape.table),
        )
    if delete_mode == "soft":
        raise SchemaRefusedError(
            "this target sends deletes as messages and keeps no row to mark: set deletes: hard",
            table=str(shape.table),
        )


def batch_frame(batch: ReducedBatch) -> DataFrame:
    """The rows of a batch with the columns that tasks look at.

    Raises:
        TargetError: the batch has rows, which are another kind of target's.
    """
    if batch.frame is None:
        raise TargetError("this target takes a frame, and the batch has rows", table=str(batch.shape.table))
    if batch.sequenced:
        raise TargetError(
            "this target keeps no row whose position could be compared: set sequence_by: kafka",
            table=str(batch.shape.table),
        )
    return batch.frame.select(*message_columns(batch, batch.frame.columns))


def check_kept(frame: DataFrame, batch: ReducedBatch, protocol: str, *, tells: bool = False) -> None:
    """Refuse values that the source left out where no message can say so; nothing was sent.

    ``tells``: the protocol has a word for them, unless the row is not the one that was stored.

    Raises:
        ValueNotStoredError: names the columns and where the row came from.
    """
    if not batch.keeps or batch.frame is None:
        return
    tells = tells or protocol.startswith("debezium")
    left_out = batch.frame.where(f"size(_kept) > 0{' AND _anew' if tells else ''}")
    places = [name for name in PLACE_COLUMNS if name in frame.columns]
    row = left_out.select("_kept", *places).first()
    if row is None:
        return
    text = (_ANEW if tells else _NO_WORD).format(columns=", ".join(row["_kept"]), protocol=protocol)
    place = {name.removeprefix("_"): row[name] for name in places}
    raise ValueNotStoredError(text, **place, table=str(batch.shape.table))


def evolved(entry: LedgerEntry, shape: TableShape, *, created: bool) -> tuple[EvolveResult, dict[str, str]]:
    """What ``shape`` changes in the columns that were sent until now, and the columns with it.

    Raises:
        SchemaRefusedError: a column's new type cannot hold what was sent before.
    """
    present = dict(entry.columns or {})
    plan = plan_evolution(present, shape)
    columns = {**present, **plan.widened, **{column.name: column.spark for column in plan.added}}
    added = tuple(column.name for column in plan.added)
    return EvolveResult(created, added, tuple(plan.widened)), columns
