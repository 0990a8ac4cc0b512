"""Where the changing table is kept or sent while its workers are killed, and how it is read beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from tests.e2e.changing import DEFAULTS, TABLE, Letter, dead_letters
from tests.e2e.passed_on import Sent, reduced, sent_messages, sent_slices
from tests.e2e.places import KINDS, place_of
from tests.e2e.replay import Servers
from tests.e2e.writing import shop_config
from tests.http_receiver import http_receiver
from tests.kafka_topics import topic_messages
from tidesink.codecs.open import open_codec
from tidesink.events import Row, Value
from tidesink.schema_registry import open_registry

Rows = dict[int, Row]


class Place(NamedTuple):
    """A target: its section of the config, its rows by their key, and the pipeline's dead letters.

    ``sent``: all that a target of messages was ever sent; None where rows are kept. ``told``: the values that
    a reader gives to rows that were sent without them. ``pack``: as ``tests/e2e/places.py`` has it.
    """

    target: dict[str, Any]
    rows: Callable[[], Rows]
    letters: Callable[[], list[Letter]]
    sent: Callable[[], list[Sent]] | None = None
    reported: Mapping[str, Value] = MappingProxyType({})
    pack: Callable[[], bool] | None = None

    def config(self) -> dict[str, Any]:
        """What the pipeline's config says of it."""
        return {"target": self.target}


def changing_config(folder: Path, servers: Servers, place: Place, batch: int) -> Path:
    """A pipeline that puts bad records aside, in batches of so many records."""
    more = {"batch": {"max-records": batch}, "defaults": {"bad-record": "dead-letter"}}
    return shop_config(folder, servers, {**more, **place.config()})


def _kept(kind: str) -> Callable[[pytest.FixtureRequest, Path, Servers], Place]:
    """Of a target that holds rows."""

    def place(request: pytest.FixtureRequest, folder: Path, servers: Servers) -> Place:
        kept = place_of(kind, request, folder)
        letters = partial(dead_letters, servers)
        pack = None if kept.pack is None else partial(kept.pack, TABLE)
        return Place(kept.target, lambda: by_id(kept.rows(TABLE) or []), letters, pack=pack)

    return place


def kafka_place(_request: pytest.FixtureRequest, _folder: Path, servers: Servers) -> Place:
    """A topic of the same broker; a new shape of the rows is a schema to register."""
    prefix = f"to-{servers['prefix']}"
    topic = f"{prefix}{TABLE.schema}_{TABLE.name}"
    codec = open_codec(
        "flat-avro", registry=open_registry(servers["registry_url"]), table_of_topic=lambda _topic: TABLE
    )
    target = {
        "type": "kafka",
        "brokers": servers["brokers"],
        "topic": f"{prefix}{{schema}}_{{table}}",
        "protocol": "flat-avro",
        "schema-registry": servers["registry_url"],
    }

    def rows() -> Rows:
        found = reduced(topic_messages(servers["brokers"], topic), codec, ("id",))
        return by_id([{**DEFAULTS, **row} for row in found.values()])

    def sent() -> list[Sent]:
        return sent_messages(topic_messages(servers["brokers"], topic), codec)

    return Place(target, rows, partial(dead_letters, servers), sent, DEFAULTS)


def http_place(request: pytest.FixtureRequest, _folder: Path, servers: Servers) -> Place:
    """An endpoint in the test's process, which remembers idempotency keys."""
    listening = http_receiver()
    receiver = listening.__enter__()
    request.addfinalizer(lambda: listening.__exit__(None, None, None))
    # Several requests a batch.
    target = {"type": "http", "url": f"{receiver.url}/{{schema}}/{{table}}", "batch-rows": 3}

    def rows() -> Rows:
        return by_id([{**DEFAULTS, **one["after"]} for one in receiver.objects(TABLE)])

    return Place(
        target, rows, partial(dead_letters, servers), lambda: sent_slices(receiver.requests), DEFAULTS
    )


def by_id(rows: list[dict[str, Any]]) -> Rows:
    """Rows by their key, each once."""
    found: Rows = {row["id"]: row for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


PLACES: Final[dict[str, Callable[[pytest.FixtureRequest, Path, Servers], Place]]] = {
    **{kind: _kept(kind) for kind in KINDS},
    "kafka": kafka_place,
    "http": http_place,
}
