"""Seeds out of our own subset of the vectors, so that an input means the same wherever it is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Final

from tests.golden.debezium_captures import find_captures
from tests.golden.vectors import VectorFolder, find_folders
from tests.vectors import SUBSET
from tidesink.events import Message

# A corpus of a thousand small files is read in seconds; more of them teach the fuzzer little.
MOST_OF_ONE: Final = 150


@cache
def folders(codec: str) -> tuple[VectorFolder, ...]:
    """The folders of TiCDC's vectors that have records of a protocol."""
    return tuple(folder for folder in find_folders(SUBSET) if folder.rows(codec))


def messages(folder: VectorFolder, codec: str) -> Iterator[Message]:
    """A folder's records of a protocol that hold anything."""
    for record in (*folder.control(codec), *folder.rows(codec)):
        if record.message.key is not None or record.message.value is not None:
            yield record.message


def captured(*, avro: bool) -> Iterator[Message]:
    """The records of Debezium's connectors, in JSON or in Avro."""
    for capture in find_captures(SUBSET):
        if capture.is_avro is avro:
            yield from islice(capture.messages, MOST_OF_ONE)


@cache
def captured_schemas() -> dict[int, str]:
    """The schemas of the connectors' Avro."""
    answers = json.loads((SUBSET / "debezium" / "avro_schemas.json").read_text(encoding="utf-8"))
    return {int(schema_id): answer["schema"] for schema_id, answer in answers.items()}
