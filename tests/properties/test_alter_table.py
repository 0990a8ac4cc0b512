"""An ALTER TABLE of several parts against a model: all parts name the columns as they were before it."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.row_changes import DdlEffects
from tidesink.events import TableId

T = TableId("s", "t")
NAMES = ("a", "b", "c", "d", "e")


class Fate(NamedTuple):
    """What becomes of one column: its new name (None: it is dropped), and its new length, if it has one."""

    name: str | None
    length: int | None
    by_change: bool
    place: str


class Statement(NamedTuple):
    """The columns of before with their lengths, what becomes of each, and columns that are added."""

    columns: tuple[str, ...]
    fates: tuple[Fate, ...]
    added: tuple[tuple[str, str], ...]
    order: tuple[int, ...]

    def parts(self) -> list[str]:
        """The parts of the ALTER TABLE, in an order of their own."""
        found = [
            part
            for number, (old, fate) in enumerate(zip(self.columns, self.fates, strict=True))
            if (part := _part(old, fate, number + 1))
        ]
        found += [f"ADD COLUMN {name} VARCHAR({90 + n}){place}" for n, (name, place) in enumerate(self.added)]
        return [found[n] for n in self.order if n < len(found)]

    def model(self) -> list[tuple[str, int]]:
        """The columns after the statement: name and length, which tells which column it was."""
        stay = list[tuple[str, int]]()
        for number, fate in enumerate(self.fates):
            if fate.name is not None and not fate.place:
                stay.append((fate.name, fate.length or number + 1))
        moves = dict[str, tuple[str, int, str]]()
        for number, (old, fate) in enumerate(zip(self.columns, self.fates, strict=True)):
            if fate.name is not None and fate.place:
                moves[_part(old, fate, number + 1)] = (fate.name, fate.length or number + 1, fate.place)
        for n, (name, place) in enumerate(self.added):
            moves[f"ADD COLUMN {name} VARCHAR({90 + n}){place}"] = (name, 90 + n, place)
        for part in self.parts():
            if part in moves:
                name, length, place = moves[part]
                stay.insert(0 if place else len(stay), (name, length))
        return stay


def _part(old: str, fate: Fate, length: int) -> str:
    if fate.name is None:
        return f"DROP COLUMN {old}"
    if fate.length is not None or fate.place or (fate.by_change and fate.name != old):
        verb = f"MODIFY {old}" if fate.name == old else f"CHANGE {old} {fate.name}"
        return f"{verb} VARCHAR({fate.length or length}){fate.place}"
    return "" if fate.name == old else f"RENAME COLUMN {old} TO {fate.name}"


@st.composite
def statements(draw: st.DrawFn) -> Statement:
    """Any permutation of names, with columns dropped, defined anew, moved first and added."""
    columns = tuple(NAMES[: draw(st.integers(2, 5))])
    pool = [*columns, "x", "y"]
    names = draw(st.permutations(pool))[: len(columns)]
    stays = draw(st.lists(st.booleans(), min_size=len(columns), max_size=len(columns)))
    stays[draw(st.integers(0, len(columns) - 1))] = True
    fates = tuple(
        Fate(
            name if stay else None,
            draw(st.sampled_from((None, None, 40 + n))),
            draw(st.booleans()),
            draw(st.sampled_from(("", "", " FIRST"))),
        )
        for n, (name, stay) in enumerate(zip(names, stays, strict=True))
    )
    free = [name for name in pool if name not in [fate.name for fate in fates]]
    wanted = draw(st.lists(st.sampled_from(free), unique=True, max_size=2)) if free else []
    added = tuple((name, draw(st.sampled_from(("", " FIRST")))) for name in wanted)
    order = tuple(draw(st.permutations(range(len(columns) + len(added)))))
    return Statement(columns, fates, added, order)


@given(statements())
def test_all_parts_refer_to_the_names_before_the_statement(statement: Statement) -> None:
    definitions = TableDefinitions()
    columns = ", ".join(f"{name} VARCHAR({n})" for n, name in enumerate(statement.columns, 1))
    definitions.apply(f"CREATE TABLE t ({columns})", "s", since=1)
    parts = statement.parts()
    if not parts:
        return
    sql = f"ALTER TABLE t {', '.join(parts)}"
    for _ in range(2):  # sent again it changes nothing
        definitions.apply(sql, "s", since=2)
        found = definitions.get(T)
        assert found is not None
        assert [(c.name, c.type.length) for c in found.columns] == statement.model()
    turned = {
        (old, fate.name)
        for old, fate in zip(statement.columns, statement.fates, strict=True)
        if fate.name not in (None, old)
    }
    assert {(one.old, one.new) for one in DdlEffects(sql, "s").renamed_columns()} == turned
    parted = {old for old, _ in turned}
    parted |= {old for old, fate in zip(statement.columns, statement.fates, strict=True) if not fate.name}
    assert definitions.removals(T).keys() == parted
