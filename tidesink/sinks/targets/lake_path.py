"""Where tables stand in a lake or a catalog; whether a lake's path can be used, leaving nothing there."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tidesink.errors import ConfigError, SchemaRefusedError, TargetError
from tidesink.events import TableId
from tidesink.sinks.targets.identifier import path_segment
from tidesink.sinks.targets.spark_errors import said

# In bytes, in the file systems of Linux, Hadoop and Azure.
_LONGEST_FOLDER: Final = 255
# Linux, HDFS, and the databases of catalogs. Java's local files say no more than that there is no folder:
# the last two are Delta's and Hadoop's words for that.
_TOO_LONG: Final = re.compile(
    r"name (is )?too long|NAMETOOLONG|ComponentTooLong|too long for (type|column)"
    r"|Cannot create file:/|Mkdirs failed to create",
    re.IGNORECASE,
)
_REMEDY: Final = "give {} a directory that the worker's user may write to, or make it one"


def table_path(root: str, template: str, table: TableId) -> str:
    """The path of a table: ``template`` under ``root``, with ``{schema}`` and ``{table}`` filled in."""
    place = template.format(schema=path_segment(table.schema), table=path_segment(table.name))
    return f"{root.rstrip('/')}/{place}"


def table_names(template: str, table: TableId) -> tuple[str, ...]:
    """The levels of a table's name: ``template``, split at its dots, with its placeholders filled in.

    Names are encoded as path segments, dots too, since catalogs make folders of them, and join them by dots.
    """
    schema, name = (path_segment(part).replace(".", "~2e") for part in table)
    return tuple(level.format(schema=schema, table=name) for level in template.split("."))


@contextmanager
def long_names_refused(names: Iterable[str], table: TableId) -> Iterator[None]:
    """Where a table cannot be opened since a folder of its place has a name too long, say so.

    Only where the cause says it: object stores have folders of any length, and what fails there may pass.

    Raises:
        SchemaRefusedError: names the folder.
    """
    try:
        yield
    except SchemaRefusedError:
        raise
    except TargetError as error:
        sizes = {name: len(name.encode("utf-8", "surrogatepass")) for name in names}
        name = max(sizes, key=sizes.__getitem__)
        if sizes[name] <= _LONGEST_FOLDER or not _TOO_LONG.search(said(error)):
            raise
        raise SchemaRefusedError(
            f"the table cannot be made: the name of its folder {name!r} has {sizes[name]} bytes, and "
            f"{_LONGEST_FOLDER} are the most that a file system takes. Rename it at the source, or "
            "give target.table a shorter template",
            table=str(table),
        ) from error


def try_path(path: str, *, setting: str = "target.path") -> str:
    """What became of listing and writing under a lake's path.

    A file without a name is written where the path is, or in the nearest directory above it that is
    there: it is gone when it is closed. Other file systems are Spark's to open, with the worker's jars.

    Raises:
        ConfigError: it cannot be listed or written to, with the system's reason.
    """
    scheme = urlsplit(path).scheme if "://" in path or path.startswith("file:") else ""
    if scheme not in ("", "file"):
        return f"{path} is not tried here: the worker opens {scheme} through Spark when it starts"
    root = Path(unquote(urlsplit(path).path) if scheme else path)
    try:
        there = next(place for place in (root, *root.parents) if place.exists())
        tables = sum(1 for place in there.iterdir() if place.is_dir())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"tidesink")
    except OSError as error:
        raise ConfigError(
            f"{setting} {root} cannot be used ({error.strerror}): {_REMEDY.format(setting)}"
        ) from error
    if there != root:
        return f"{root} is made by the first batch: {there} can be written to"
    return f"{root} can be written to, and holds {tables} directories"
