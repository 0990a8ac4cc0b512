"""What to say of a record that is none of Debezium's: what it looks like, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidesink.errors import shown

_TELL_FLATTENED: Final = (
    "if ExtractNewRecordState made it, add op to transforms.unwrap.add.fields at the connector, or set "
    "debezium-unwrapped"
)
# Members that only one other protocol's messages have together, and what to do.
_OTHERS: Final = (
    (
        {"isDdl", "mysqlType", "data"},
        "this looks like canal-json: set the protocol to canal-json",
    ),
    (
        {"specversion", "datacontenttype"},
        "this is a CloudEvent: set value.converter to org.apache.kafka.connect.json.JsonConverter or an "
        "Avro converter at the connector",
    ),
    ({"xid", "commit", "data", "type"}, "this looks like Maxwell's format, which is not read"),
    (
        {"commitTs", "type", "schemaVersion"},
        "this looks like TiCDC's simple protocol, which is not read: use canal-json or avro",
    ),
)


def refusal(payload: object) -> str:
    """Why a value is no event of Debezium, and what to do about it."""
    if not isinstance(payload, Mapping):
        return f"{shown(payload)} is neither an envelope nor a row: is the topic's protocol a Debezium one?"
    for members, words in _OTHERS:
        if members <= payload.keys():
            return f"the value is no event of Debezium: {words}"
    names = ", ".join(shown(name, 40) for name in list(payload)[:6])
    return (
        f"the value with members {names} has no op and source, so it is no envelope of Debezium: "
        f"{_TELL_FLATTENED}"
    )
