"""What may come of any bytes: events that can be shown and written, or a refusal in few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson

from tidesink.cli.json_lines import event_json
from tidesink.codecs.base import Codec
from tidesink.errors import DecodeError, EncodeError, SchemaNotFoundError, TidesinkError
from tidesink.events import Event, Message

MOST_TEXT: Final = 4000


class RuleBrokenError(AssertionError):
    """An input showed what no input may."""


def require(holds: bool, what: str) -> None:
    """Raises RuleBrokenError unless the rule holds; not an assert, which ``python -O`` leaves out."""
    if not holds:
        raise RuleBrokenError(what)


def is_told(error: TidesinkError, message: Message) -> None:
    """A refusal says where the record is, and is short."""
    require(len(str(error)) < MOST_TEXT, f"the refusal has {len(str(error))} characters")
    require(error.context.get("topic") == message.topic, "the refusal does not say the topic")
    require(error.context.get("offset") == message.offset, "the refusal does not say the offset")


def decoded(codec: Codec, message: Message) -> tuple[Event, ...]:
    """The events of a record, each shown as JSON; none for a record that is refused."""
    try:
        events = codec.decode(message)
    except (DecodeError, SchemaNotFoundError) as error:
        is_told(error, message)
        return ()
    for event in events:
        orjson.dumps(event_json(event))
    return events


def written(codec: Codec, events: tuple[Event, ...]) -> None:
    """What was read can be written, or is refused by name."""
    for event in events:
        refused: EncodeError | None = None
        try:
            codec.encode(event, topic=event.position.topic)
        except EncodeError as error:
            refused = error
        require(refused is None or len(str(refused)) < MOST_TEXT, "the refusal is long")


def refuses(call: Callable[[], object], *errors: type[TidesinkError]) -> None:
    """The call comes to an end, or raises one of these errors in few words."""
    reported = ""
    try:
        call()
    except errors as error:
        reported = str(error)
    require(len(reported) < MOST_TEXT, f"the refusal has {len(reported)} characters")
