"""What Postgres's catalog says of a view, and how one that stands in the way of a change comes back."""

from __future__ import annotations

from typing import Any

from tidesink.sinks.targets.sql_place import Place


def view_text(cursor: Any, place: Place, name: str) -> str | None:
    """The definition of the view ``name``; None where nothing has the name, empty for what is no view."""
    cursor.execute(
        "SELECT CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) ELSE '' END FROM pg_class "
        "WHERE oid = to_regclass(%s)",
        (place.beside(name),),
    )
    found = cursor.fetchone()
    return None if found is None else str(found[0])


def view_in_the_way(cursor: Any, view: str) -> tuple[list[str], list[str]]:
    """A column's type does not change under a view: it goes before, and gets its rights again after."""
    cursor.execute(
        "SELECT format('GRANT %%s ON %%s TO %%s', a.privilege_type, c.oid::regclass, "
        "CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END) "
        "FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner",
        (view,),
    )
    return [f"DROP VIEW IF EXISTS {view}"], [grant for (grant,) in cursor.fetchall()]
