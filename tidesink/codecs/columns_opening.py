"""A plan of column expressions by its protocol's name: decoding in a Spark job of one's own.

The session's settings matter: the zone must be UTC and Avro needs the ``spark-avro`` jar, both of which
``tidesink.sinks.session.build_session`` sees to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidesink.codecs.base import CodecOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, SchemaNotFoundError
from tidesink.events import TableId, TableSchema
from tidesink.schema_registry.naming import SubjectPart, subject
from tidesink.typemap.render import ZeroDate

if TYPE_CHECKING:
    from tidesink.codecs.columns_base import DecodeColumns
    from tidesink.schema_registry.base import SchemaReader


@dataclass(frozen=True)
class ColumnsParts:
    """What plans are made of; each protocol takes what it needs."""

    table: TableId
    topic: str | None
    registry: SchemaReader | None
    definition: str | None
    keys: tuple[str, ...] | None
    zero_date: ZeroDate
    time_zone: str
    options: CodecOptions | None = None


def _flat_avro(parts: ColumnsParts) -> DecodeColumns:
    from tidesink.codecs.columns_flat_avro import flat_avro_columns

    if parts.registry is None or parts.topic is None:
        raise ConfigError(
            "flat-avro's schemas are in the registry, under the topic's subjects: give registry= and topic="
        )
    return flat_avro_columns(
        parts.table,
        key_schemas=_schemas(parts.registry, parts.topic, "key"),
        value_schemas=_schemas(parts.registry, parts.topic, "value"),
        keys=parts.keys,
        zero_date=parts.zero_date,
        time_zone=parts.time_zone,
        checksum=parts.options.checksum if parts.options else "off",
    )


def _schemas(registry: SchemaReader, topic: str, part: SubjectPart) -> dict[int, str]:
    """Every version of TiCDC's subject of a topic, by id."""
    return _versions(registry, subject(topic, part))


def _versions(registry: SchemaReader, name: str) -> dict[int, str]:
    """Every version of a subject, by id; none for a subject the registry does not have."""
    try:
        versions = registry.versions(name)
    except SchemaNotFoundError:
        return {}
    found = [registry.schema_by_version(name, version) for version in versions]
    return {one.id: one.schema_text for one in found}


def _debezium_avro(parts: ColumnsParts) -> DecodeColumns:
    from tidesink.codecs.columns_debezium_avro import debezium_avro_columns

    if parts.registry is None or parts.topic is None:
        raise ConfigError(
            "debezium-avro's schemas are in the registry, under the topic's subjects: give registry= and "
            "topic="
        )
    options = parts.options or CodecOptions()
    return debezium_avro_columns(
        parts.table,
        key_schemas=_versions(parts.registry, f"{parts.topic}-key"),
        value_schemas=_versions(parts.registry, f"{parts.topic}-value"),
        definition=_defined(parts) if parts.definition is not None else None,
        keys=parts.keys,
        zero_date=parts.zero_date,
        time_zone=parts.time_zone,
        modes=replace(options.debezium, time_zone=parts.time_zone),
    )


def _debezium_json(parts: ColumnsParts) -> DecodeColumns:
    from tidesink.codecs.columns_debezium_json_plan import debezium_json_columns

    options = parts.options or CodecOptions()
    modes = replace(options.debezium, time_zone=parts.time_zone)
    return debezium_json_columns(
        parts.table,
        definition=_defined(parts, "debezium-json's records are not looked at for their schemas here"),
        keys=parts.keys,
        zero_date=parts.zero_date,
        time_zone=parts.time_zone,
        options=replace(options, debezium=modes, time_zone=parts.time_zone),
    )


def _defined(parts: ColumnsParts, why: str = "the records carry no full types") -> TableSchema:
    if parts.definition is None:
        raise ConfigError(f"{why}: give definition= the table's CREATE TABLE")
    definitions = TableDefinitions()
    definitions.declare(parts.definition, parts.table.schema)
    found = definitions.get(parts.table)
    if found is None:
        raise ConfigError(f"definition= is not of {parts.table}", table=str(parts.table))
    return found


COLUMNS: Final[Mapping[str, Callable[[ColumnsParts], DecodeColumns]]] = {
    "flat-avro": _flat_avro,
    "avro": _flat_avro,
    "debezium-avro": _debezium_avro,
    "debezium-json": _debezium_json,
    "debezium": _debezium_json,
}
