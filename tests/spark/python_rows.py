"""What the Python codec reads, as the target's types hold it."""

from __future__ import annotations

from decimal import Decimal
from zoneinfo import ZoneInfo

from tests.spark.decoded import Values
from tidesink.events import ChangeEvent, Op
from tidesink.typemap.target_schema import TargetSchema
from tidesink.typemap.values import target_reader


def stored(event: ChangeEvent, shape: TargetSchema) -> Values:
    """Kind, commit_ts and the row's values: ``after.<column>``, or ``key.<column>`` of a delete."""
    deleted = event.op is Op.DELETE
    image, row = ("key", event.key) if deleted else ("after", event.after)
    expected: Values = {
        "kind": "delete" if deleted else "upsert",
        "error": None,
        "commit_ts": event.commit_ts,
    }
    assert event.schema is not None
    zone = ZoneInfo(shape.time_zone)
    for name, value in (row or {}).items():
        target = shape.by_name[name.lower()]
        read = target_reader(event.schema.by_name[name].type, time_zone=zone, zero_date=shape.zero_date)(
            value
        )
        if target.spark.startswith("decimal") and read is not None:
            read = Decimal(str(read))
        if target.spark == "string" and isinstance(read, Decimal):
            read = format(read, "f")
        expected[f"{image}.{target.name}"] = read
    return expected
