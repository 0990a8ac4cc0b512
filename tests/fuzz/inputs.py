"""One fuzzer's input as the two halves of a Kafka record, and how such inputs are changed.

Byte 0 chooses among a target's variants, byte 1 says which halves are null, bytes 2 and 3 how long the
first half is. Text that is JSON is changed as JSON, so that the fuzzer comes past the parser.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

HEAD: Final = 4
_NO_KEY: Final = 1
_NO_VALUE: Final = 2
_MOST_KEY: Final = 0xFFFF

Mutate = Callable[[bytes, int], bytes]


class Halves(NamedTuple):
    """An input, taken apart."""

    choice: int
    key: bytes | None
    value: bytes | None


def packed(key: bytes | None, value: bytes | None, *, choice: int = 0) -> bytes:
    """The input for two halves; a key that is too long is cut."""
    first, second = (key or b"")[:_MOST_KEY], value or b""
    nulls = (_NO_KEY if key is None else 0) | (_NO_VALUE if value is None else 0)
    return bytes([choice & 0xFF, nulls]) + len(first).to_bytes(2, "little") + first + second


def unpacked(data: bytes) -> Halves:
    """The halves of any bytes."""
    if len(data) < HEAD:
        return Halves(0, None, data)
    length = int.from_bytes(data[2:HEAD], "little")
    key = None if data[1] & _NO_KEY else data[HEAD : HEAD + length]
    value = None if data[1] & _NO_VALUE else data[HEAD + length :]
    return Halves(data[0], key, value)


# What breaks readers: bounds, exponents, dates no calendar has, text that is nearly something else.
_TEXTS: Final = (
    *("", "0", "-0", "-1", "1e999999999", "1e-999999999", "-1e400", "9" * 400, "0." + "3" * 400, "NaN"),
    *("Infinity", "0x1F", "1_000", "\u0661", "true", "null", "0000-00-00", "2024-02-30", "9999-12-31"),
    *("-0001-01-01", "838:59:59.999999", "24:00:00", "1970-01-01T00:00:00Z", "2024-01-01 00:00:00.1234567"),
    *("\x00", "\ud7ff\ue000", "\U0001f600", "{}", "[]", '{"a":1}', "AQI=", "AQI", "a,b", "%00", "../../x"),
    *("decimal(65,30)", "enum('a')", "bit(64)", "bigint unsigned", "io.debezium.time.ZonedTimestamp"),
    *("org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal", "string", "struct"),
    *("__debezium_unavailable_value", "DROP TABLE t", "c", "u", "d", "r", "t", "m", "INSERT", "DELETE"),
)
_NUMBERS: Final = (0, 1, -1, 127, 255, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**40)
_FLOATS: Final = (0.5, -0.0, 1e-300, 1e300, 1.7976931348623157e308)
_NESTED: Final = 40


def scalar(chance: random.Random) -> Any:
    """A value that a reader may not expect."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.choice((None, True, False))
    if kind == 1:
        return chance.choice(_NUMBERS)
    if kind == 2:
        return chance.choice(_FLOATS)
    return chance.choice(_TEXTS)


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container of a value with each of its keys."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, one in inside:
        found.append((value, name))
        if isinstance(one, (dict, list)):
            _places(one, found)
    return found


def _nested(value: Any, chance: random.Random) -> Any:
    for _ in range(chance.randrange(1, _NESTED)):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


def _change(holder: Any, name: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    kind = chance.randrange(7)
    if kind == 0:
        del holder[name]
    elif kind == 1:
        other, at = chance.choice(places)
        holder[name] = copy.deepcopy(other[at])
    elif kind == 2:
        holder[name] = _nested(holder[name], chance)
    elif kind == 3 and isinstance(holder, dict):
        holder[str(chance.choice(_TEXTS))] = holder[name]
    elif kind == 4 and isinstance(holder, list):
        holder.insert(name, copy.deepcopy(holder[name]))
    elif kind == 5:
        holder[name] = chance.choice(({}, [], [None], {"a": None}))
    else:
        holder[name] = scalar(chance)


def changed_json(data: bytes, chance: random.Random, *, changes: int) -> bytes | None:
    """JSON with a few of its values changed; None where the bytes are no JSON object or array."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, (dict, list)):
        return None
    for _ in range(changes):
        places = _places(value, [])
        if places:
            holder, name = chance.choice(places)
            _change(holder, name, places, chance)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def mutated(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """An input made of another: half of the time as JSON where it is, else as bytes by ``mutate``."""
    chance = random.Random(seed)
    halves = unpacked(data)
    if chance.random() < 0.5 or len(data) < HEAD:
        return mutate(data, most)
    changes = chance.randrange(1, 4)
    parts = [halves.key, halves.value]
    first = chance.randrange(2)
    for at in (first, 1 - first):
        part = parts[at]
        new = changed_json(part, chance, changes=changes) if part else None
        if new is not None and len(new) <= most:
            parts[at] = new
            return packed(parts[0], parts[1], choice=halves.choice)[:most]
    return mutate(data, most)
