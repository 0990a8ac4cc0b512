"""How tasks decode the records of one table: the codec, with the schemas that the driver looked up.

Tasks ask no registry. A record whose schema the driver does not know yet is given back as ``unplanned``: the
driver looks it up and runs the batch again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import HEADER_SIZE, CodecOptions
from tidesink.codecs.batch import DecodedBatch
from tidesink.codecs.columns_base import BAD, UNPLANNED
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.errors import SchemaMismatchError, SchemaNotFoundError, TidesinkError
from tidesink.events import TableId
from tidesink.schema_registry.memory import MemorySchemaRegistry
from tidesink.sinks.batch.tasks import OtherRecord
from tidesink.typemap.render import ZeroDate

_NO_ID = -1


@dataclass(frozen=True)
class SideSchemas:
    """The schemas of a topic's keys, or of its values, by registry id.

    ``texts`` can be used. ``refused`` cannot, and ``unknown`` were looked up in vain, each with the reason.
    """

    texts: Mapping[int, str]
    refused: Mapping[int, str] = field(default_factory=dict)
    unknown: Mapping[int, str] = field(default_factory=dict)

    def fault(self, schema_id: int) -> tuple[str, str] | None:
        """Why records of a schema are bad: the error's class and the reason; None where it is only new."""
        if schema_id in self.refused:
            return SchemaMismatchError.__name__, self.refused[schema_id]
        if schema_id in self.unknown:
            return SchemaNotFoundError.__name__, self.unknown[schema_id]
        return None


@dataclass(frozen=True)
class FlatAvroDecoder:
    """Decodes the flat-avro records of one table."""

    table: TableId
    keys: SideSchemas
    values: SideSchemas
    time_zone: str
    zero_date: ZeroDate

    def split(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[OtherRecord]]:
        """The records whose schemas are known, and the others."""
        ids = {name: schema_ids(records.column(name)) for name in ("key", "value")}
        sides = {"key": self.keys, "value": self.values}
        odd = np.zeros(records.num_rows, np.bool_)
        for name, side in sides.items():
            odd |= (ids[name] != _NO_ID) & ~np.isin(ids[name], list(side.texts))
        if not odd.any():
            return records, []
        others = [self._other(records, at, ids) for at in np.nonzero(odd)[0].tolist()]
        return records.filter(pa.array(~odd)), others

    def _other(
        self, records: pa.RecordBatch, at: int, ids: Mapping[str, npt.NDArray[np.int64]]
    ) -> OtherRecord:
        for name, side in (("key", self.keys), ("value", self.values)):
            schema_id = int(ids[name][at])
            fault = None if schema_id == _NO_ID else side.fault(schema_id)
            if fault is not None:
                return _other_record(records, at, BAD, fault[0], f"{name}: {fault[1]}")
        return _other_record(records, at, UNPLANNED, None, "a schema id is new")

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """The records' events."""
        return self._codec.decode_batch(records, zero_date=self.zero_date)

    def bad_record(self, records: pa.RecordBatch, at: int, error: TidesinkError) -> OtherRecord:
        """A record that cannot be decoded."""
        column = error.context.get("column")
        reason = error.message if column is None else f"column {column!r}: {error.message}"
        return _other_record(records, at, BAD, type(error).__name__, reason)

    @cached_property
    def _codec(self) -> FlatAvroCodec:
        return FlatAvroCodec(
            registry=_KnownSchemas({**self.keys.texts, **self.values.texts}),
            options=CodecOptions(time_zone=self.time_zone),
            table_of_topic=lambda _topic: self.table,
        )

    def __getstate__(self) -> dict[str, object]:
        # The codec is made again in each process: it has caches.
        return {name: value for name, value in self.__dict__.items() if name != "_codec"}


class _KnownSchemas(MemorySchemaRegistry):
    """A registry with the ids that another one gave."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        super().__init__()
        self._known = texts

    def schema_by_id(self, schema_id: int) -> str:
        """The text of a schema."""
        return self._known[schema_id]


def _other_record(records: pa.RecordBatch, at: int, kind: str, error: str | None, reason: str) -> OtherRecord:
    key, value = (records.column(name)[at].as_py() for name in ("key", "value"))
    ids: Sequence[int | None] = [_id_of(part) for part in (key, value)]
    bad = kind == BAD
    return OtherRecord(
        kind,
        records.column("offset")[at].as_py(),
        error=error,
        reason=reason,
        key_id=ids[0],
        value_id=ids[1],
        key=key if bad else None,
        value=value if bad else None,
    )


def _id_of(data: bytes | None) -> int | None:
    if data is None or len(data) < HEADER_SIZE or data[0] != 0:
        return None
    return int.from_bytes(data[1:HEADER_SIZE], "big")


def schema_ids(column: pa.Array) -> npt.NDArray[np.int64]:
    """The schema id in the Confluent header of each value; -1 where there is no header."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    found = np.full(len(column), _NO_ID, np.int64)
    framed = np.nonzero(lengths >= HEADER_SIZE)[0]
    if not len(framed):
        return found
    heads = pc.binary_slice(column.take(pa.array(framed)), 0, HEADER_SIZE)
    data = np.frombuffer(heads.cast(pa.binary(HEADER_SIZE)).buffers()[1], np.uint8)
    rows = data[heads.offset * HEADER_SIZE :][: len(framed) * HEADER_SIZE].reshape(-1, HEADER_SIZE)
    ids = rows[:, 1:].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
    found[framed] = np.where(rows[:, 0] == 0, ids, _NO_ID)
    return found
