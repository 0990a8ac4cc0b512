"""A table's place in a lake: one path for one table, whatever its name holds."""

from __future__ import annotations

import re

from tidesink.change import TableId

# ``_x2f_`` stands for "/"; a name that holds such a text has its underscore escaped as well.
_ESCAPED = re.compile(r"[^\w.-]|_(?=x[0-9a-f]+_)|^\.+$")


def _part(name: str) -> str:
    return _ESCAPED.sub(lambda found: "".join(f"_x{ord(char):x}_" for char in found.group()), name)


def table_path(root: str, template: str, table: TableId) -> str:
    """The path of a table under a root, by a template with ``{schema}`` and ``{table}``."""
    place = template.replace("{schema}", _part(table.schema)).replace("{table}", _part(table.name))
    return f"{root.rstrip('/')}/{place}" if root else place
