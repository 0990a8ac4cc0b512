"""The runbook has every state and every class of error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from tidesink.errors import TidesinkError
from tidesink.sinks.state.progress import TableState
from tidesink.sinks.targets.sql import mysql_merge as mysql_errors
from tidesink.sinks.targets.sql import postgres_merge as postgres_errors
from tidesink.sinks.targets.sql.faults import Fault

_PAGE = (Path(__file__).parents[3] / "docs" / "runbook.md").read_text(encoding="utf-8")


def _classes(kind: type[TidesinkError]) -> set[str]:
    own = {kind.__name__} if kind.__module__ == TidesinkError.__module__ else set()
    return own.union(*map(_classes, kind.__subclasses__()))


def test_it_has_every_state_and_every_error() -> None:
    rows = set(re.findall(r"(?m)^\| `(\w+)` \|", _PAGE))
    assert rows == {*get_args(TableState), *_classes(TidesinkError)}


def test_the_codes_of_databases_have_a_meaning_of_their_own() -> None:
    """All but those of a connection that was not made, which have a table of their own."""
    table = _PAGE.partition("## Errors of Postgres")[2]
    numbers = {one for one in re.findall(r"\b\d{4}\b", table) if one not in ("2003", "2026", "3159")}
    states = set(re.findall(r"\b\d\d[0-9P]\d\d\b", table)) - {"57P03"}
    assert len(numbers) > 20
    assert len(states) > 10
    for errors, codes in ((mysql_errors, numbers), (postgres_errors, states)):
        for code in codes:
            assert "refuses the statement" not in errors.error_of(Fault(code), table="t").message, code
