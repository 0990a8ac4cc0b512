"""One half of a Debezium record, a key or a value, out of its bytes: the payload and its Connect schema."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from tidesink.codecs.connect_schema import ConnectSchema
from tidesink.events import Message


class Parsed(NamedTuple):
    """A payload with the schema it was written with (None: the JSON carries none).

    ``payload`` is the record as a dict of the wire's own values: JSON's numbers with a point as
    ``Decimal``, so that no digit is lost; Avro's bytes as they stand, whatever their logical type says.
    """

    payload: Any
    schema: ConnectSchema | None = None
    schema_id: int | None = None


class Parser(Protocol):
    """Reads the halves of records: of JSON, or of Avro with a registry."""

    def read(self, message: Message, part: str) -> Parsed | None:
        """A message's ``key`` or ``value``; None where that is null.

        Raises:
            DecodeError: the bytes are not what this protocol writes.
            RegistryError: the schema they were written with cannot be had.
        """
