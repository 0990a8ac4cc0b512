"""What ``plan`` says of a table by its mode: its columns, and what its topic cannot tell a change log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tidesink.codecs.flat_avro.record import WriterRecord
from tidesink.config import TableConfig
from tidesink.sinks.modes import kept_shape
from tidesink.typemap.target_schema import TableShape

_NO_OLD_ROWS: Final = (
    "the topic has no old rows: updates come as update_postimage alone, deletes with their key alone. New "
    "TiCDC writes them with avro-include-before-value=true; canal-json has them always"
)
_NO_OPS: Final = (
    "the topic does not tell inserts from updates, so both are called upsert: enable-tidb-extension=true in "
    "the changefeed tells them"
)
_NO_MOMENTS: Final = (
    "deletes of classic TiCDC's flat-avro have no commit_ts, so the table pauses before the first of them: "
    "use canal-json with enable-tidb-extension=true. New TiCDC's delete markers have one"
)
_NO_KEY: Final = (
    "the table has no key: a delete without its row is a bad record (flat-avro has the row with "
    "avro-include-before-value=true)"
)


def planned_shape(shape: TableShape, settings: TableConfig) -> TableShape:
    """The columns of the target's table.

    Raises:
        SchemaRefusedError: the source has a column of a name that the mode needs.
    """
    return kept_shape(shape, settings)


def flat_avro_warnings(
    records: Iterable[WriterRecord], keys: tuple[str, ...], settings: TableConfig
) -> Iterator[str]:
    """What flat-avro's schemas keep from a change log, and from what asks for a commit_ts in each event."""
    newest = list(records)[-1]
    if newest.before is None and (settings.mode == "history" or settings.sequence_by == "source"):
        yield _NO_MOMENTS
    if settings.mode != "append":
        return
    if newest.before is None:
        yield _NO_OLD_ROWS
    if "_tidb_op" not in newest.extension:
        yield _NO_OPS
    if not keys and newest.before is None:
        yield _NO_KEY
