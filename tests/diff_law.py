"""The law of ``tidesink diff`` for one key, in plain Python: what each look makes of those before."""

from __future__ import annotations

from typing import NamedTuple

# A row's version; None: there is no row.
Version = int | None


class Candidate(NamedTuple):
    """A key whose states differ. ``agreed``: so many looks found the states of the look before."""

    s: Version
    t: Version
    agreed: int = 0


def first_look(s: Version, t: Version) -> Candidate | None:
    """The key after the look at all rows; None: it is equal."""
    return None if s == t else Candidate(s, t)


def next_look(before: Candidate, s: Version, t: Version) -> Candidate | None:
    """The key after another look, at the source and then at the target; None: it is equal."""
    if s in (before.t, t):
        return None
    agrees = (s, t) == (before.s, before.t)
    return Candidate(s, t, before.agreed + 1 if agrees else 0)
