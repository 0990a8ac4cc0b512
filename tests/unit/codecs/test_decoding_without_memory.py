"""Lack of memory is no fault of a record: it leaves the decoders, and the task is tried again."""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
import pytest

import tidesink.codecs
import tidesink.typemap
from tidesink.sinks.spark.errors import passing_failure

# Decodes whole records of 64 MiB with 24 MiB of memory to spare, and prints the class of what each raises.
_SCRIPT: Final = """
import json, resource
from pathlib import Path
from zoneinfo import ZoneInfo
from tests.unit.codecs.flat_avro.cases import TOPIC, change, codec_with, message_of, table
from tidesink.codecs.debezium.formats import AvroParser
from tidesink.events import ColumnType, Message
from tidesink.schema_registry import MemorySchemaRegistry
from tidesink.typemap.arrow import from_python

SIZE = 1 << 26
LENGTH = bytes([0x80, 0x80, 0x80, 0x40])  # of SIZE, as Avro writes it

registry = MemorySchemaRegistry()
schema = json.dumps({"type": "record", "name": "Value", "fields": [{"name": "a", "type": "string"}]})
number = registry.register("t-value", schema)
value = b"\\0" + number.to_bytes(4, "big") + LENGTH + b"x" * SIZE
parser = AvroParser(registry)
codec = codec_with()
texts_of = table("create table t (id int primary key, s longtext not null)")
message = message_of(codec, change(after={"id": 1, "s": "ab"}, schema=texts_of))
flat = Message(TOPIC, 0, 0, message.key, message.value[:5] + b"\\x02" + LENGTH + b"x" * SIZE)
texts = ["x" * SIZE] * 4
read = lambda values: from_python(
    values, ColumnType("text"), zero_date="null", time_zone=ZoneInfo("UTC")
)
steps = {
    "debezium-avro": lambda: parser.read(Message("t", 0, 0, None, value), "value"),
    "flat-avro": lambda: codec.decode(flat),
    "arrow": lambda: read(texts),
}
# What is learned once is known by now.
parser.writer(number), codec.decode(message), read(["x"])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = used + 24 * (1 << 20)
said = {}
for name, step in steps.items():
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        found = step()
        said[name] = repr(getattr(found, "errors", found))[:80]
    except Exception as error:
        said[name] = type(error).__name__
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(said))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells how much memory is in use")
def test_a_record_that_memory_does_not_suffice_for_is_not_a_bad_one() -> None:
    # Arrow's own pools take much more than they need, and would have it to spare.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said == {"debezium-avro": "MemoryError", "flat-avro": "MemoryError", "arrow": "ArrowMemoryError"}


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 67108864 failed")])
def test_a_task_that_memory_does_not_suffice_for_may_pass(error: Exception) -> None:
    assert passing_failure(error) is not None
    outer = RuntimeError("a task failed")
    outer.__cause__ = error
    assert passing_failure(outer) is not None


def _modules() -> Iterator[ModuleType]:
    for package in (tidesink.codecs, tidesink.typemap):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def _caught(module: ModuleType) -> Iterator[tuple[int, type[BaseException]]]:
    """Each class that a module's handlers catch, with the line."""
    assert module.__file__ is not None
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ExceptHandler):
            continue
        assert node.type is not None, f"{module.__name__}:{node.lineno} catches everything"
        for kind in _kinds(node.type, {**vars(builtins), **vars(module)}):
            yield node.lineno, kind


def _kinds(node: ast.expr, names: dict[str, Any]) -> tuple[Any, ...]:
    """What an expression after ``except`` names; nothing for a library that the function itself imports."""
    if isinstance(node, ast.Tuple):
        return tuple(kind for one in node.elts for kind in _kinds(one, names))
    if isinstance(node, ast.Starred):
        return _kinds(node.value, names)
    if isinstance(node, ast.Attribute):
        return tuple(getattr(one, node.attr) for one in _kinds(node.value, names))
    assert isinstance(node, ast.Name)
    found = names.get(node.id, ())
    return found if isinstance(found, tuple) else (found,)


def test_no_decoder_takes_lack_of_memory_for_anything_else() -> None:
    caught = [
        (module.__name__, line)
        for module in _modules()
        for line, kind in _caught(module)
        if issubclass(MemoryError, kind) or issubclass(pa.ArrowMemoryError, kind)
    ]
    # A storage's errors are of many libraries: all of them may pass, as this does.
    assert {name for name, _ in caught} == {"tidesink.codecs.large_messages"}
    assert len(caught) == 1
