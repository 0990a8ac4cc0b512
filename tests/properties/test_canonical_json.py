"""The one spelling of JSON in ``tidesink diff``: two texts share it if and only if they are one value."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidesink.sinks.spark.digests import canonical_json

_NUMBERS: Final = st.from_regex(
    r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
)
_NAMES: Final = st.sampled_from(("a", "b", "é", "", "\u0000", '"'))
# A value is a text of a number in a tuple, a text, a constant, a list, or a list of members under "object".
_VALUES: Final = st.recursive(
    st.one_of(_NUMBERS.map(lambda text: (text,)), st.text(max_size=4), st.sampled_from((True, False, None))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(st.tuples(_NAMES, inner), max_size=4).map(lambda members: {"object": members}),
    ),
    max_leaves=8,
)


def _written(value: Any, chance: random.Random) -> str:
    """One of the texts of a value."""
    space = "".join(chance.choices(" \t\r\n", k=chance.choice((0, 0, 1, 2))))
    if isinstance(value, tuple):
        return space + _renumbered(value[0], chance) + space
    if isinstance(value, list):
        return f"{space}[{','.join(_written(one, chance) for one in value)}{space}]"
    if isinstance(value, dict):
        members = [*value["object"]]
        names = [name for name, _ in members]
        if len({*names}) == len(names):
            chance.shuffle(members)
        inner = (f"{space}{_text(name, chance)}{space}:{_written(one, chance)}" for name, one in members)
        return f"{{{','.join(inner)}{space}}}"
    return space + (_text(value, chance) if isinstance(value, str) else json.dumps(value))


def _text(value: str, chance: random.Random) -> str:
    return json.dumps(value, ensure_ascii=chance.random() < 0.5)


def _renumbered(text: str, chance: random.Random) -> str:
    """A number with zeros at the end of its fraction, or another exponent."""
    mantissa, _, exponent = text.lower().partition("e")
    if "." in mantissa and chance.random() < 0.5:
        mantissa += "0" * chance.randrange(3)
    if chance.random() < 0.5 and "." not in mantissa:
        mantissa = f"{mantissa}.0"
    return f"{mantissa}E{int(exponent)}" if exponent else mantissa


def _model(value: Any) -> Any:
    """What two texts of one value have in common, by Python's own numbers."""
    if isinstance(value, tuple):
        return ("number", *_exact(value[0]))
    if isinstance(value, list):
        return ["array", *map(_model, value)]
    if isinstance(value, dict):
        return ["object", *sorted(((n, _model(one)) for n, one in value["object"]), key=lambda one: one[0])]
    return value


def _exact(text: str) -> tuple[int, ...]:
    sign, digits, exponent = Decimal(text).as_tuple()
    whole = int("".join(map(str, digits)))
    if whole == 0:
        return (0, 0, 0)
    while whole % 10 == 0:
        whole, exponent = whole // 10, int(exponent) + 1
    return sign, whole, int(exponent)


@given(_VALUES, _VALUES, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
@example(("9007199254740993.0",), ("9007199254740992.0",), random.Random(1))
def test_texts_have_one_spelling_if_and_only_if_they_are_one_value(
    one: Any, other: Any, chance: random.Random
) -> None:
    spelt = canonical_json(_written(one, chance))
    assert spelt is not None
    assert spelt == canonical_json(_written(one, chance))
    assert spelt == canonical_json(spelt)
    assert (spelt == canonical_json(_written(other, chance))) == (repr(_model(one)) == repr(_model(other)))


@given(st.one_of(st.text(alphabet='[]{}:,"01-.eE \\nutrlfas\t', max_size=12), st.text(max_size=4)))
@settings(max_examples=200, deadline=None)
def test_what_is_no_json_stays_as_it_is_and_json_stays_its_value(text: str) -> None:
    try:
        known = json.loads(text, parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=_members)
    except ValueError:
        assert canonical_json(text) == text
        return
    spelt = canonical_json(text)
    assert spelt is not None
    found = json.loads(spelt, parse_float=Decimal, object_pairs_hook=_members)
    assert repr(_normal(found)) == repr(_normal(known))


def _refuse(word: str) -> None:
    raise ValueError(word)


def _members(pairs: list[tuple[str, Any]]) -> Any:
    return {"object": sorted(pairs, key=lambda pair: pair[0])}


def _normal(value: Any) -> Any:
    if isinstance(value, list):
        return [_normal(one) for one in value]
    if isinstance(value, dict):
        return {"object": [(name, _normal(one)) for name, one in value["object"]]}
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return _exact(str(value))
    return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12345678901234567890.123", "12345678901234567890.124"),
        ("1e400", "1e500"),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"a":1,"a":2}', '{"a":2,"a":1}'),
        ("0.1", "0.10000000000000000555"),
        ("1" * 5000, "1" * 4999 + "2"),
        ("1", "true"),
        ('"1"', "1"),
        ("null", '"null"'),
        ("[]", "{}"),
        ("1e-400", "0"),
        ("1e1" + "0" * 999, "1e2" + "0" * 999),
        ('"\\ud800"', '"\\udfff"'),
        ("NaN", "null"),
    ],
)
def test_other_values_have_other_spellings(one: str, other: str) -> None:
    assert canonical_json(one) != canonical_json(other)


def test_any_depth_and_any_length_of_numbers() -> None:
    for opening, closing in (("[", "]"), ('{"a" : ', "}")):
        deep = opening * 20_000 + "1.0" + closing * 20_000
        other = opening * 20_000 + "1" + closing * 20_000
        assert canonical_json(deep) == canonical_json(other) != deep
        assert canonical_json(deep[:-1]) == deep[:-1]
    assert canonical_json("1" + "0" * 5000) == canonical_json("1e5000")
