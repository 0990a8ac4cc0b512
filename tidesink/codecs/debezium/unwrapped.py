"""Reads rows flattened by Debezium's ExtractNewRecordState, which removes the envelope around the row.

The transform may keep members of the envelope as additional fields. Source: Debezium 3.5.0.Final (captured
with ``add.fields`` op, table, source.ts_ms, ``add.headers`` op and ``delete.tombstone.handling.mode``
rewrite-with-tombstone), and its documentation for the rest: an added field is ``__op``, ``__table``,
``__lsn`` or ``__source_lsn``, and mode rewrite adds ``__deleted``.

A flattened row is recognised by one of these fields, by a header ``__op``, or by a schema whose name ends in
``.Value``. Records without any of them raise an error, because treating other JSON as a row could be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.envelope import OPS, POSTGRES, connector_of, table_of_source
from tidesink.errors import SchemaMismatchError, shown
from tidesink.events import Message, Op, TableId

# A field of a flattened row, or a header of its record.
OP_HEADER: Final = "__op"
_DELETED: Final = "__deleted"
_SOURCE_PREFIX: Final = "__source_"
_PREFIX: Final = "__"
# Members of the envelope, and of the source blocks of all connectors: ``add.fields`` accepts these names,
# with or without the prefix ``source.``.
_ENVELOPE: Final = frozenset({"ts_ms", "ts_us", "ts_ns", "transaction_id", "transaction_total_order"})
_COMMON: Final = (
    "version",
    "connector",
    "name",
    "snapshot",
    "db",
    "sequence",
    "schema",
    "table",
    "collection",
)
_MYSQL: Final = ("server_id", "gtid", "file", "pos", "row", "thread", "query")
_POSTGRES: Final = ("txId", "lsn", "xmin", "origin", "origin_lsn")
_ORACLE: Final = ("scn", "commit_scn", "lcr_position", "rs_id", "ssn", "redo_thread", "user_name", "row_id")
_SQL_SERVER: Final = ("change_lsn", "commit_lsn", "event_serial_no")
_MONGODB: Final = ("rs", "ord", "lsid", "txnNumber")
_OTHERS: Final = ("keyspace", "shard", "vgtid", "commit_ts", "cluster_id")
_SOURCE: Final = frozenset((*_COMMON, *_MYSQL, *_POSTGRES, *_ORACLE, *_SQL_SERVER, *_MONGODB, *_OTHERS))
_CONNECTOR_HEADER: Final = "__debezium.context.connectorName"
# Fields that identify the connector if no field names it.
_TELLING: Final = (("lsn", POSTGRES), ("file", "mysql"), ("scn", "oracle"), ("commit_lsn", "sqlserver"))


class Flattened(NamedTuple):
    """A flattened row: its operation, its table, its position, and its columns.

    ``source`` holds the members of the source block that the transform kept. ``added`` holds the fields that
    the transform added to the row, by name.
    """

    op: Op
    table: TableId
    source: dict[str, Any]
    columns: Mapping[str, Any]
    schema: ConnectSchema | None
    added: dict[str, Any]


def is_added(name: str) -> bool:
    """Returns True if the transform added this field to a flattened row, so it is not a column."""
    if not name.startswith(_PREFIX):
        return False
    rest = name[len(_PREFIX) :]
    return (
        name in (OP_HEADER, _DELETED)
        or rest in _ENVELOPE
        or rest in _SOURCE
        or name.startswith(_SOURCE_PREFIX)
    )


def header(message: Message, name: str) -> str | None:
    """Returns the text of the last header with this name, without quotes; None if there is no such header."""
    data = next((value for key, value in reversed(message.headers) if key == name), None)
    return None if data is None else data.decode("utf-8", "replace").strip('"')


def is_flattened(message: Message, payload: Mapping[str, Any], schema: ConnectSchema | None) -> bool:
    """Returns True if a field, a header or the schema of a record shows that it is a flattened row."""
    if any(is_added(name) for name in payload) or header(message, OP_HEADER) is not None:
        return True
    return schema is not None and (schema.name or "").endswith(".Value")


def marked_delete(message: Message) -> bool:
    """Returns True if a record has the header ``__op``.

    A record with a null value and this header is the delete of a flattened row.
    """
    return header(message, OP_HEADER) is not None


def flattened(message: Message, payload: Mapping[str, Any], schema: ConnectSchema | None) -> Flattened:
    """Parses a flattened row.

    Raises:
        SchemaMismatchError: the row's ``__op`` is not an operation of Debezium.
    """
    added = {name: value for name, value in payload.items() if is_added(name)}
    source = added_source(message, added)
    code = added.get(OP_HEADER) or header(message, OP_HEADER)
    if code == "r":
        source.setdefault("snapshot", "true")
    return Flattened(
        op=_op(code, added.get(_DELETED)),
        table=flattened_table(message, source, schema),
        source=source,
        columns={name: value for name, value in payload.items() if name not in added},
        schema=schema,
        added=added,
    )


def _op(code: object, deleted: object) -> Op:
    if deleted in ("true", True):
        return Op.DELETE
    if code is None:
        return Op.UPSERT
    if not isinstance(code, str) or code not in OPS:
        raise SchemaMismatchError(
            f"The operation {OP_HEADER} of a flattened row is {shown(code, 40)}, but one of "
            f"{', '.join(map(str, OPS))} was expected."
        )
    return OPS[code]


def source_of_headers(message: Message) -> dict[str, Any]:
    """Returns the members of the source block that the record's headers contain."""
    return added_source(message, {})


def added_source(message: Message, added: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the members of the source block that the added fields and the headers contain."""
    source: dict[str, Any] = {}
    for name, value in added.items():
        rest = name[len(_SOURCE_PREFIX if name.startswith(_SOURCE_PREFIX) else _PREFIX) :]
        if value is not None and (name.startswith(_SOURCE_PREFIX) or rest in _SOURCE):
            source.setdefault(rest, value)
    connector = source.get("connector") or header(message, _CONNECTOR_HEADER)
    reported = next((connector for member, connector in _TELLING if member in source), None)
    if connector or reported:
        source["connector"] = connector or reported
    return source


def flattened_table(message: Message, source: Mapping[str, Any], schema: ConnectSchema | None) -> TableId:
    """Returns the table of a flattened record.

    The table comes from the record's own fields, otherwise from the topic's name, otherwise from the schema's
    name.
    """
    table = table_of_source(source)
    if table.schema and table.name:
        return table
    topic = message.topic
    if table.name and topic.endswith(f".{table.name}"):
        return TableId(topic[: -len(table.name) - 1].rpartition(".")[2], table.name)
    if table.name:
        return table
    return _from_topic(topic, connector_of(source)) or _from_name(schema) or TableId("", topic)


def _from_topic(topic: str, connector: str) -> TableId | None:
    # <prefix>.<database or schema>.<table>; SQL Server has both: <prefix>.<database>.<schema>.<table>.
    parts = topic.split(".")
    before = 2 if connector == "sqlserver" and len(parts) > 3 else 1
    return TableId(parts[before], ".".join(parts[before + 1 :])) if len(parts) > before + 1 else None


def _from_name(schema: ConnectSchema | None) -> TableId | None:
    parts = (schema.name or "").split(".")[:-1] if schema else []
    return TableId(parts[1], ".".join(parts[2:])) if len(parts) > 2 else None
