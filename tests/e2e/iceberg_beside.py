"""What is read of Iceberg tables beside a worker, without a catalog."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_METADATA: Final = re.compile(r"v(\d+)\.metadata\.json")


def newest_metadata(table: Path) -> str:
    """The newest metadata file of a table in a catalog that is a folder.

    Its name is the commit. The hint beside it is written behind that, in two steps, and by a dead worker's
    last statement maybe after the next worker's.

    Raises:
        FileNotFoundError: there is no such table.
    """
    versions = [
        int(name[1]) for path in (table / "metadata").iterdir() if (name := _METADATA.fullmatch(path.name))
    ]
    if not versions:
        raise FileNotFoundError(table)
    return str(table / "metadata" / f"v{max(versions)}.metadata.json")
