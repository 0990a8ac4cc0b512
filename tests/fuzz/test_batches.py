"""Every vector damaged at every byte, in batches: ``decode_batch`` gives what the row codec gives.

``make test`` damages some places of some vectors, ``make test-all`` each place of each Avro record, and each
third of JSON records, which are many times as long and much alike: the first place goes with the offset, so
that records of one form have all their places damaged between them. What stands in other tests: random
schemas and rows under the same damages (``tests/properties``).
"""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa
import pytest

from tests.decoded_batches import as_records, assert_same, with_part
from tests.full import FULL
from tests.fuzz import seeds
from tests.golden.debezium_captures import find_captures
from tests.golden.vectors import VectorFolder
from tests.vectors import SUBSET
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, CodecOptions
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.options import FlatAvroOptions
from tidesink.errors import RegistryError
from tidesink.events import Message
from tidesink.schema_registry import MemorySchemaRegistry

_PROTOCOLS: Final = {
    "flat-avro": "avro",
    "canal-json": "canal-json",
    "debezium-json": "debezium",
    "debezium-avro": "debezium-avro",
}
_AVRO: Final = ("flat-avro", "debezium-avro")
# Of a batch's bytes, and beside them: what decoders allocate at most.
_MOST_TIMES: Final = 20
_MOST_BESIDE: Final = 8 << 20


class Vectors(NamedTuple):
    """Records of one producer, and how a codec for them is opened."""

    open: Callable[[], Codec]
    messages: Sequence[Message]
    zone: str = "UTC"

    def hold(self, *batches: Iterable[Message]) -> None:
        """Batches of them, for one codec, are what the row codec makes of their records one by one."""
        codec, reference = self.open(), self.open()
        options = ValueOptions(time_zone=self.zone)
        for records in map(as_records, batches):
            found = _outcome(partial(codec.decode_batch, records))
            expected = _outcome(partial(rows_from_events, records, reference.decode, options))
            if isinstance(found, str) or isinstance(expected, str):
                assert found == expected
            else:
                assert_same(found, expected)


def _outcome(decode: Callable[[], DecodedBatch]) -> DecodedBatch | str:
    try:
        return decode()
    except RegistryError as error:
        return f"{type(error).__name__}: {error}"


def _vectors(protocol: str) -> Iterator[Vectors]:
    """The vectors of a protocol, by what their codec is opened with."""
    for folder in seeds.folders(_PROTOCOLS[protocol]):
        yield from _of_folder(folder, protocol)
    for capture in find_captures(SUBSET) if protocol.startswith("debezium") else ():
        if capture.is_avro is (protocol in _AVRO):
            yield Vectors(capture.codec, list(capture.messages))


def _of_folder(folder: VectorFolder, protocol: str) -> Iterator[Vectors]:
    found, by_options = _PROTOCOLS[protocol], defaultdict[CodecOptions, list[Message]](list)
    for record in (*folder.rows(found), *folder.control(found)):
        if not record.raw.get("error"):
            is_avro, shared = protocol == "flat-avro", CodecOptions(time_zone=record.time_zone)
            options = record.options_of(FlatAvroOptions) if is_avro else shared
            by_options[options].append(record.message)
    for options, messages in by_options.items():

        def opened(options: CodecOptions = options) -> Codec:
            return open_codec(protocol, registry=MemorySchemaRegistry(folder.schemas), options=options)

        yield Vectors(opened, messages, options.time_zone)


def _varint(value: int) -> bytes:
    """A number of any size as Avro writes a long."""
    rest, found = (value << 1) if value >= 0 else (~value << 1 | 1), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


# Where 32 and 64 bits end, on both sides, and what no 64 bits hold.
_LENGTHS: Final = (
    *(
        _varint(sign * (1 << bits) + beside)
        for bits in (31, 32, 62, 63)
        for sign in (1, -1)
        for beside in (-1, 0, 1)
    ),
    b"\x80" * 9,
    b"\xff" * 10,
    b"\x80" * 9 + b"\x02",
)


def _bytes_damaged(whole: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """A byte changed, cut off there, and the byte doubled; then the whole twice."""
    for at in places:
        for other in {whole[at] ^ 1, whole[at] ^ 0x80, 0xFF - whole[at]}:
            yield whole[:at] + bytes([other]) + whole[at + 1 :]
        yield whole[:at]
        yield whole[: at + 1] + whole[at:]
    yield whole + whole


def _lengths_damaged(whole: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """A great length in place of a byte."""
    return (whole[:at] + length + whole[at + 1 :] for at in places for length in _LENGTHS)


Damage = Callable[[bytes, Iterable[int]], Iterator[bytes]]
# Only Avro has lengths.
_CASES: Final = [
    *((name, _bytes_damaged) for name in _PROTOCOLS),
    *((name, _lengths_damaged) for name in _AVRO),
]


def _damaged(one: Message, damage: Damage, step: int) -> tuple[list[Message], list[Message]]:
    """A record damaged at every so many bytes of its key and its value.

    Beside them those whose schema's id is another: one that is not known ends a whole batch.
    """
    same, others = [one], list[Message]()
    for part, whole in (("key", one.key), ("value", one.value)):
        for bad in damage(whole, range(one.offset % step, len(whole), step)) if whole else ():
            other_id = bad[:1] == b"\0" and len(bad) >= 5 and bad[1:5] != (whole or b"")[1:5]
            (others if other_id else same).append(with_part(one, part, bad))
    return [*same, one], others


def _hold_all(vectors: Vectors, damage: Damage, *, step: int, records: int) -> None:
    every = max(1, len(vectors.messages) // records)
    for one in islice(vectors.messages, 0, None, every):
        same, others = _damaged(one, damage, step)
        vectors.hold(same, *([one, other, one] for other in others))


@pytest.mark.parametrize(("protocol", "damage"), _CASES)
def test_some_damage_is_read_as_by_the_row_codec(protocol: str, damage: Damage) -> None:
    for vectors in _vectors(protocol):
        _hold_all(vectors, damage, step=29, records=2)


@FULL
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("protocol", "damage"), _CASES)
def test_any_damage_is_read_as_by_the_row_codec(protocol: str, damage: Damage) -> None:
    # A byte has many lengths: of those another fifth of the places in each record.
    steps = {"canal-json": 3, "debezium-json": 3}
    for vectors in _vectors(protocol):
        step = 5 if damage is _lengths_damaged else steps.get(protocol, 1)
        _hold_all(vectors, damage, step=step, records=len(vectors.messages))


def _split(one: Message, step: int) -> Iterator[Message]:
    """A record that is cut at every so many bytes, each time with the rest as the next record."""
    whole = one.value or b""
    for at in range(0, len(whole), step):
        # A rest that looks like a header names a schema that is not known, which ends a whole batch.
        if at == 0 or whole[at] != 0:
            yield replace(one, value=whole[:at])
            yield replace(one, value=whole[at:])
            yield one


@pytest.mark.parametrize("protocol", _PROTOCOLS)
def test_a_record_that_ends_in_the_next_one_is_read_alone(protocol: str) -> None:
    for vectors in _vectors(protocol):
        some = islice(vectors.messages, 0, None, 9)
        vectors.hold(part for one in some for part in _split(one, 37))


# The most that Arrow allocated is a pool's own number. What was made in the pool may outlive the test.
_POOL: Final = pa.proxy_memory_pool(pa.default_memory_pool())


@pytest.mark.parametrize("protocol", _PROTOCOLS)
def test_damage_allocates_no_more_than_a_multiple_of_the_records(protocol: str) -> None:
    damage = _lengths_damaged if protocol in _AVRO else _bytes_damaged
    usual = pa.default_memory_pool()
    for vectors in _vectors(protocol):
        by_length = sorted(vectors.messages, key=lambda message: len(message.value or b""))
        records = as_records(_damaged(by_length[len(by_length) // 2], damage, 5)[0])
        codec = vectors.open()
        pa.set_memory_pool(_POOL)
        before = _POOL.bytes_allocated()
        tracemalloc.start()
        try:
            codec.decode_batch(records)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            pa.set_memory_pool(usual)
        arrow = max(_POOL.max_memory() - before, 0)
        assert most + arrow < _MOST_BESIDE + _MOST_TIMES * records.nbytes
