"""What is fuzzed, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from tests.fuzz import targets_codecs as codecs
from tests.fuzz import targets_framing as around
from tests.fuzz import targets_schemas as schemas
from tests.fuzz import targets_text as text


class Target(NamedTuple):
    """A reader of bytes from outside: inputs it knows, and what one input does.

    ``run`` raises for what no input may do. ``halves``: an input is taken apart by ``inputs.unpacked``.
    """

    seeds: Callable[[], Iterator[bytes]]
    run: Callable[[bytes], None]
    halves: bool = True


TARGETS: Final[Mapping[str, Target]] = {
    "flat-avro": Target(codecs.flat_avro_seeds, codecs.flat_avro),
    "canal-json": Target(codecs.canal_json_seeds, codecs.canal_json),
    "debezium-json": Target(codecs.debezium_json_seeds, codecs.debezium_json),
    "debezium-avro": Target(codecs.debezium_avro_seeds, codecs.debezium_avro),
    "writer-schema": Target(schemas.writer_schema_seeds, schemas.writer_schema),
    "connect-schema": Target(schemas.connect_schema_seeds, schemas.connect_schema),
    "framing": Target(around.framing_seeds, around.framing),
    "compression": Target(around.compression_seeds, around.compression, halves=False),
    "large-messages": Target(around.large_message_seeds, around.large_messages),
    "ddl": Target(text.ddl_seeds, text.ddl, halves=False),
    "input-lines": Target(text.input_line_seeds, text.input_lines),
    "event-lines": Target(text.event_line_seeds, text.event_lines),
}
