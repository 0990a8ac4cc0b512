"""What a reader of messages ends with, compared with what TiDB held."""

from __future__ import annotations

import json
import re
import struct
from base64 import b64decode
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from tests.contracts.message_beds import stamp_of
from tests.e2e.sql_compare import in_calendar
from tests.http_receiver import Request
from tidesink.codecs.base import Codec
from tidesink.dev.shop import ExpectedTable
from tidesink.events import ChangeEvent, Message, Op, Value
from tidesink.sinks.targets.stream.kafka import IDEMPOTENCY_HEADER

# Rows that were sent before a column was added have no message that has it: its default is the reader's.
DEFAULTS: Mapping[str, str | None] = {"tier": "basic"}
_FRACTION = re.compile(r"(\d\d:\d\d:\d\d)\.(\d*?)0*(?!\d)", re.ASCII)
Rows = dict[tuple[str, ...], Mapping[str, Any]]


def reduced(messages: Iterable[Message], codec: Codec, key: tuple[str, ...]) -> Rows:
    """The rows that a topic's messages leave, the newest batch's word for each key."""
    found: dict[tuple[str, ...], tuple[tuple[int, int], ChangeEvent]] = {}
    for message in messages:
        (event,) = codec.decode(message)
        assert isinstance(event, ChangeEvent)
        assert event.key is not None
        name, at = tuple(str(event.key[column]) for column in key), stamp_of(message)
        if name not in found or at >= found[name][0]:
            found[name] = (at, event)
    return {name: event.after or {} for name, (_, event) in found.items() if event.op is not Op.DELETE}


def wrong_rows(found: Rows, expected: ExpectedTable) -> list[str]:
    """Every difference, in words."""
    names = list(expected.columns)
    wanted = {
        tuple(str(row[names.index(column)]) for column in expected.key): dict(zip(names, row, strict=True))
        for row in expected.rows
    }
    wrong = [f"{expected.table} {key}: missing" for key in wanted.keys() - found.keys()]
    wrong += [f"{expected.table} {key}: must not be there" for key in found.keys() - wanted.keys()]
    for key in wanted.keys() & found.keys():
        row = found[key]
        for name, text in wanted[key].items():
            value = row[name] if name in row else DEFAULTS.get(name)
            if not is_value(value, text):
                wrong.append(f"{expected.table} {key} {name}: {value!r}, must be {text!r}")
    return wrong


def is_value(value: Value, text: str | None) -> bool:
    """Whether a decoded value is the one that SELECT showed."""
    if text is None or value is None:
        return value is None and (text is None or not in_calendar(text))
    if isinstance(value, bytes):
        return value == bytes.fromhex(text)
    if isinstance(value, Decimal):
        return value == Decimal(text)
    if isinstance(value, float):
        return value == float(text) or struct.pack("<f", value) == struct.pack("<f", float(text))
    if isinstance(value, int):
        return value == int(text)
    return value == text or _short(value) == _short(text)


def _short(text: str) -> str:
    """A time without the zeros at the end of its fraction, which not every wire tells."""
    return _FRACTION.sub(lambda one: one[1] + (f".{one[2]}" if one[2] else ""), text, count=1)


def rows_of_objects(objects: Iterable[Mapping[str, Any]], key: tuple[str, ...]) -> Rows:
    """The rows that an endpoint was sent, binary read back."""
    return {
        tuple(str(one["key"][column]) for column in key): {
            name: _plain(value) for name, value in one["after"].items()
        }
        for one in objects
    }


def _plain(value: Any) -> Any:
    return b64decode(value["base64"]) if isinstance(value, dict) else value


class Sent(NamedTuple):
    """A message, or a request: the batch and the epoch it is of, its idempotency key, and what it says."""

    batch: int
    epoch: int
    key: str
    said: str


def sent_messages(messages: Iterable[Message], codec: Codec) -> list[Sent]:
    """The messages of a topic."""
    found = []
    for message in messages:
        (event,) = codec.decode(message)
        assert isinstance(event, ChangeEvent)
        epoch, batch = stamp_of(message)
        key = dict(message.headers)[IDEMPOTENCY_HEADER]
        assert key is not None
        found.append(Sent(batch, epoch, key.decode(), str((event.op, event.key, event.after))))
    return found


def sent_slices(requests: Iterable[Request]) -> list[Sent]:
    """The requests that an endpoint was sent."""
    return [
        Sent(
            int(one.headers["tidesink-batch"]),
            int(one.headers["tidesink-epoch"]),
            one.headers["idempotency-key"],
            json.dumps(one.objects, sort_keys=True),
        )
        for one in requests
        if one.method != "HEAD"
    ]


def sent_again(sent: Iterable[Sent]) -> set[int]:
    """The batches that more than one epoch sent, which were the same each time, under the same keys."""
    batches: dict[int, dict[int, set[tuple[str, str]]]] = {}
    for one in sent:
        batches.setdefault(one.batch, {}).setdefault(one.epoch, set()).add((one.key, one.said))
    for batch, epochs in batches.items():
        first, *others = epochs.values()
        assert all(other == first for other in others), f"batch {batch} was sent otherwise"
    return {batch for batch, epochs in batches.items() if len(epochs) > 1}
