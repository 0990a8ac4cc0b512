"""What Postgres's catalog says of a view, and how one that stands in the way of a change comes back."""

from __future__ import annotations

from typing import Any, Final

from tidesink.sinks.targets.sql_dialect import ForView
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


# What a view that is dropped takes along, each as a statement with the column it is about, or without one.
_RIGHTS: Final = """
SELECT NULL, format('GRANT %%s ON %%s TO %%s%%s', a.privilege_type, c.oid::regclass, {grantee}, {option})
FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = to_regclass(%(view)s) AND a.grantee <> c.relowner
UNION ALL
SELECT n.attname, format('GRANT %%s (%%I) ON %%s TO %%s%%s', a.privilege_type, n.attname, c.oid::regclass,
{grantee}, {option})
FROM pg_class c JOIN pg_attribute n ON n.attrelid = c.oid, aclexplode(n.attacl) a
WHERE c.oid = to_regclass(%(view)s) AND a.grantee <> c.relowner AND NOT n.attisdropped
UNION ALL
SELECT NULL, format('COMMENT ON VIEW %%s IS %%L', oid::regclass, obj_description(oid, 'pg_class'))
FROM pg_class WHERE oid = to_regclass(%(view)s) AND obj_description(oid, 'pg_class') IS NOT NULL
""".format(
    grantee="CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END",
    option="CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END",
)


def view_in_the_way(cursor: Any, view: str) -> tuple[list[str], list[ForView]]:
    """A column's type does not change under a view: it goes before, and gets its rights again after."""
    cursor.execute(_RIGHTS, {"view": view})
    return [f"DROP VIEW IF EXISTS {view}"], [ForView(*found) for found in cursor.fetchall()]
