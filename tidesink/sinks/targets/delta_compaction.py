"""Packing of a table's small files.

Every batch leaves a file or two, and a MERGE reads each file its keys may be in, so that without packing
a batch would cost more with every batch before it. Delta's own auto compaction rewrites a freshly loaded
table at once and signs its commit with the batch's words, so the worker packs by itself, seldom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidesink.sinks.targets.delta_errors import SPARK_ERRORS
from tidesink.sinks.targets.delta_log import DeltaLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A table is packed when it has this many files more than after the last time.
FILES_BETWEEN: Final = 50


class Compaction:
    """The packing of one table; its file sizes are session settings (``delta_session``)."""

    def __init__(self, session: SparkSession, log: DeltaLog, location: str) -> None:
        self._session, self._log, self._location = session, log, location
        self._files_before = 0

    def run_if_due(self) -> bool:
        """Pack small files where many have gathered; whether it was tried.

        A packing that fails leaves the table as it was, and mostly means that somebody else commits: the
        next one is tried after as many files again.
        """
        try:
            if self._log.file_count() < self._files_before + FILES_BETWEEN:
                return False
            self._files_before = self._log.file_count()
            self._session.sql(f"OPTIMIZE {self._location}")
            self._files_before = self._log.file_count()
        except SPARK_ERRORS:
            return True
        return True
