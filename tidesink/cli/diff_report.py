"""The report file of ``tidesink diff``: the differing keys as JSON Lines.

While a comparison runs, a second file next to the report (the progress file) lists the tables that are
already compared, and the length of the report after the last of these tables. With ``--resume``, an
interrupted comparison continues from the progress file.
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

# What the target is compared with, as named in texts and in JSON: the source, or the other pipeline's target.
Side = Literal["source", "other"]
_SUFFIX: Final = ".unfinished"


class Report:
    """The report file of a running comparison.

    ``found``: results of the tables that are already compared, including those of an interrupted run that
    this run continues.
    """

    def __init__(self, path: Path, file: IO[bytes], side: Side, of: Mapping[str, Any]) -> None:
        self.found: list[TableDiff] = []
        # A pipe or a device has no length from which a report could continue.
        self._progress = path.with_name(path.name + _SUFFIX) if path.is_file() else None
        self._file, self._side, self._of = file, side, dict(of)

    def keep(self, table: TableId, difference: Difference) -> None:
        """Write a key that differs to the report file."""
        with _writing():
            line = {"table": table._asdict(), **difference_json(difference, self._side)}
            self._file.write(orjson.dumps(line) + b"\n")

    def done(self, diff: TableDiff) -> None:
        """Record a table as compared. A table that could not be compared is tried again with --resume."""
        if diff.refused is not None:
            return
        self.found.append(diff)
        if self._progress is None:
            return
        with _writing():
            self._file.flush()
            document = {"of": self._of, "bytes": self._file.tell(), "tables": self.found}
            new = self._progress.with_name(f"{self._progress.name}.new")
            new.write_bytes(msgspec.json.encode(document))
            new.replace(self._progress)

    def go_on(self) -> None:
        """Continue an interrupted run: truncate the report after the last table that was compared.

        Raises:
            ConfigError: there is no interrupted run, or the run compared something else.
        """
        from tidesink.sinks.diff.comparison import TableDiff

        path = self._file.name
        try:
            document = json.loads(self._progress.read_bytes() if self._progress is not None else b"")
            diffs, size = msgspec.convert(document["tables"], list[TableDiff]), int(document["bytes"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"There is no comparison to continue: {path}{_SUFFIX} does not exist. Remove --resume.",
                key="--resume",
            ) from error
        if document["of"] != self._of:
            raise ConfigError(
                f"{path} is from another comparison ({_named_options(document['of'])}, not "
                f"{_named_options(self._of)}). Give the same options, or another file.",
                key="--resume",
            )
        with _writing():
            self._file.seek(size)
            self._file.truncate()
        self.found = diffs

    def finish(self) -> None:
        """Remove the progress file, after all tables were compared."""
        if self._progress is not None:
            with _writing():
                self._progress.unlink(missing_ok=True)

    def leave(self) -> None:
        """Print how to continue the comparison, if tables are compared and the report is a file."""
        if self.found and self._progress is not None:
            note(f"{len(self.found)} tables are compared. To continue, run the command again with --resume")


@contextmanager
def kept(
    path: Path, side: Side = "source", *, of: Mapping[str, Any] | None = None, resume: bool = False
) -> Iterator[Report]:
    """Open the report file of a comparison.

    ``of``: options that describe what is compared, as JSON. An interrupted comparison can only be continued
    with the same options. ``resume``: True to continue the interrupted comparison.

    Raises:
        ConfigError: the file cannot be written, or there is no interrupted comparison.
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
        raise ConfigError(f"{path} cannot be written: {error}.", key="--report") from error


class _NotWrittenError(Exception):
    """The report file or its progress file cannot be written."""


@contextmanager
def _writing() -> Iterator[None]:
    """Convert an OSError raised in this context to ``_NotWrittenError``.

    This distinguishes errors of the report's files from OSErrors of the comparison itself.
    """
    try:
        yield
    except OSError as error:
        raise _NotWrittenError(error.strerror) from error


def _named_options(of: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in of.items() if value is not None)


def difference_json(difference: Difference, side: Side) -> dict[str, Any]:
    """Return a differing key and its values on both sides as JSON."""
    shown: dict[str, Any] = {"kind": named(difference.kind, side), "key": dict(difference.key)}
    if difference.kind == "different":
        shown["columns"] = list(difference.columns)
    if difference.values is not None:
        shown["values"] = {
            name: {side: here, "target": there} for name, (here, there) in difference.values.items()
        }
    return shown


def named(name: str, side: Side) -> str:
    """Return the name of a count or kind of difference, such as ``only_at_source``, for ``side``.

    Replaces ``source`` in the name by ``other`` if ``side`` is the target of another pipeline.
    """
    return name.replace("source", side)
