"""A consumer in a process of its own: it notes what it was given, line by line, and can be killed."""

from __future__ import annotations

import sys
from pathlib import Path

import tidesink


def main(config: str, group: str, notes: str, pause: float) -> None:
    """Note each event's id and position, and only then come back for more."""
    import time

    with (
        tidesink.consume(config, group=group, batch_records=20, stop_after_idle=6, refresh=1) as events,
        Path(notes).open("a", encoding="utf-8") as log,
    ):
        for event in events:
            assert isinstance(event, tidesink.ChangeEvent)
            number = (event.after or {})["id"]
            assert isinstance(number, int)
            log.write(f"{number} {event.position.partition} {event.position.offset}\n")
            log.flush()
            time.sleep(pause)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
