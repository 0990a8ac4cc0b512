"""The report of ``tidesink diff``: the keys that differ, as JSON Lines, and which tables it has.

Beside the report of a comparison that is not over stands a file of the tables that are done, and where the
report ended then. By it a comparison that was cut off goes on (``--resume``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import msgspec
import orjson

from tidesink.cli.terminal import note
from tidesink.errors import ConfigError
from tidesink.events import TableId

if TYPE_CHECKING:
    from tidesink.sinks.diff.comparison import Difference, TableDiff

# With what the target is compared, in words and in names.
Side = Literal["source", "other"]
_SUFFIX: Final = ".unfinished"


class Report:
    """A report that is written. ``found``: what came of the tables that are done, in an earlier run too."""

    def __init__(self, path: Path, file: IO[bytes], side: Side, of: Mapping[str, Any]) -> None:
        self.found: list[TableDiff] = []
        # A pipe, or a device, has no length to go on from.
        self._progress = path.with_name(path.name + _SUFFIX) if path.is_file() else None
        self._file, self._side, self._of = file, side, dict(of)

    def keep(self, table: TableId, one: Difference) -> None:
        """Write a key that differs."""
        with _writing():
            line = {"table": table._asdict(), **difference_json(one, self._side)}
            self._file.write(orjson.dumps(line) + b"\n")

    def done(self, found: TableDiff) -> None:
        """Know that a table is compared; one that could not be is tried again."""
        if found.refused is not None:
            return
        self.found.append(found)
        if self._progress is None:
            return
        with _writing():
            self._file.flush()
            document = {"of": self._of, "bytes": self._file.tell(), "tables": self.found}
            new = self._progress.with_name(f"{self._progress.name}.new")
            new.write_bytes(msgspec.json.encode(document))
            new.replace(self._progress)

    def go_on(self) -> None:
        """Take what an earlier run had done, and leave out what it wrote of the table after that.

        Raises:
            ConfigError: no run was cut off, or it compared something else.
        """
        from tidesink.sinks.diff.comparison import TableDiff

        path = self._file.name
        try:
            kept = json.loads(self._progress.read_bytes() if self._progress is not None else b"")
            found, size = msgspec.convert(kept["tables"], list[TableDiff]), int(kept["bytes"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"there is no comparison to go on with: {path}{_SUFFIX} is none. Leave --resume out",
                key="--resume",
            ) from error
        if kept["of"] != self._of:
            raise ConfigError(
                f"{path} is of another comparison ({_named_options(kept['of'])}, and not "
                f"{_named_options(self._of)}): give the same options, or another file",
                key="--resume",
            )
        with _writing():
            self._file.seek(size)
            self._file.truncate()
        self.found = found

    def finish(self) -> None:
        """Know that all tables are done."""
        if self._progress is not None:
            with _writing():
                self._progress.unlink(missing_ok=True)

    def leave(self) -> None:
        """Say that the comparison may go on later."""
        if self.found and self._progress is not None:
            note(f"{len(self.found)} tables are compared: the same command with --resume goes on")


@contextmanager
def kept(
    path: Path, side: Side = "source", *, of: Mapping[str, Any] | None = None, resume: bool = False
) -> Iterator[Report]:
    """The report of a comparison; ``of`` says what is compared, in JSON. ``resume``: it goes on.

    Raises:
        ConfigError: the file cannot be written, or there is nothing to go on with.
    """
    try:
        with _writing():
            file = path.open("r+b" if resume else "wb")
        report = Report(path, file, side, of or {})
        try:
            if resume:
                report.go_on()
            else:
                report.finish()
            yield report
        except BaseException:
            report.leave()
            raise
        finally:
            with _writing():
                file.close()
        report.finish()
    except _NotWrittenError as error:
        raise ConfigError(f"{path} cannot be written: {error}", key="--report") from error


class _NotWrittenError(Exception):
    """A file of the report cannot be written, which is no error of a table."""


@contextmanager
def _writing() -> Iterator[None]:
    """Around what is done to the files alone: a comparison has errors of the system of its own."""
    try:
        yield
    except OSError as error:
        raise _NotWrittenError(error.strerror) from error


def _named_options(of: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in of.items() if value is not None)


def difference_json(one: Difference, side: Side) -> dict[str, Any]:
    """A key that differs, as JSON."""
    shown: dict[str, Any] = {"kind": named(one.kind, side), "key": dict(one.key)}
    if one.kind == "different":
        shown["columns"] = list(one.columns)
    if one.values is not None:
        shown["values"] = {name: {side: here, "target": there} for name, (here, there) in one.values.items()}
    return shown


def named(name: str, side: Side) -> str:
    """A count or a kind by its name, which says with what the target is compared."""
    return name.replace("source", side)
