"""Imports point one way, and heavy libraries stay in their places."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import pytest

PACKAGE: Final = Path(__file__).resolve().parents[3] / "tidesink"

# From the ground up: a room imports its own floor and those below, nothing above.
FLOORS: Final = (
    ("errors", "events"),
    ("kafka_client",),
    ("typemap",),
    ("ddl",),
    ("schema_registry",),
    ("source_database",),
    ("codecs",),
    ("config",),
    ("consumer",),
    ("sinks",),
    ("cuts",),
    ("control",),
    ("dev",),
    ("cli",),
)
FLOOR_OF: Final = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
SPARK_ALLOWED: Final = (
    "sinks/batch/*.py",
    "sinks/decode/filtering.py",
    "sinks/letters/tasks.py",
    "sinks/runtime/shared_reads.py",
    "sinks/spark/*.py",
    "sinks/targets/**",
)
HEAVY: Final = ("pyspark", "pandas", "pyarrow", "numpy", "py4j", "delta")


class Import(NamedTuple):
    path: PurePosixPath
    line: int
    module: str
    for_types_only: bool


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _imports(source: Path, *, members: bool = False) -> Iterator[Import]:
    """A module's imports; with ``members`` each imported name by itself, behind its module's name."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    path = PurePosixPath(source.relative_to(PACKAGE).as_posix())
    unseen = {id(node) for block in ast.walk(tree) if _is_type_checking(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        for module in _imported(node, path, members=members):
            yield Import(path, getattr(node, "lineno", 0), module, id(node) in unseen)


def _imported(node: ast.AST, path: PurePosixPath, *, members: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = node.module or ""
    if node.level:
        base = ("tidesink", *path.parts[:-1])
        module = ".".join([*base[: len(base) - node.level + 1], *([module] if module else [])])
    # `from tidesink import errors` names a room only in its second half.
    if members or module == "tidesink":
        return [f"{module}.{alias.name}" for alias in node.names]
    return [module]


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _room(path: PurePosixPath) -> str:
    return path.parts[0] if len(path.parts) > 1 else path.stem


def _allowed_spark(path: PurePosixPath) -> bool:
    return any(
        path.parts[:2] == ("sinks", "targets") if pattern.endswith("**") else path.match(pattern)
        for pattern in SPARK_ALLOWED
    )


ALL_IMPORTS: Final = [one for source in _modules() for one in _imports(source)]


def test_every_room_has_a_floor() -> None:
    rooms = {_room(PurePosixPath(p.relative_to(PACKAGE).as_posix())) for p in _modules()}
    assert rooms - {"__init__", "__main__"} <= FLOOR_OF.keys()


@pytest.mark.parametrize("rooms", FLOORS, ids="+".join)
def test_imports_point_down(rooms: tuple[str, ...]) -> None:
    floor = FLOOR_OF[rooms[0]]
    upward = [
        f"{one.path}:{one.line} imports {one.module}"
        for one in ALL_IMPORTS
        if _room(one.path) in rooms and one.module.startswith("tidesink.")
        if FLOOR_OF.get(one.module.split(".")[1], -1) > floor
    ]
    assert upward == []


def test_the_floors_are_climbed_at_all() -> None:
    """Guards the test above: it would also pass if it saw no import."""
    down = {(_room(i.path), i.module.split(".")[1]) for i in ALL_IMPORTS if i.module.startswith("tidesink.")}
    assert {("codecs", "typemap"), ("dev", "sinks")} <= down


# The rooms of ``sinks``, from the ground up.
SINKS: Final = (
    "state",
    "laws",
    "kafka",
    "spark",
    "targets",
    "decode",
    "batch",
    "schema_changes",
    "letters",
    "runtime",
    "jobs",
    "snapshots",
    "cuts",
    "worker",
    "diff",
)


def test_the_rooms_of_sinks_import_down_too() -> None:
    found = {
        (one.path.parts[1].removesuffix(".py"), one.module.split(".")[2])
        for one in ALL_IMPORTS
        if one.path.parts[0] == "sinks" and one.module.startswith("tidesink.sinks.")
    }
    assert [pair for pair in found if SINKS.index(pair[1]) > SINKS.index(pair[0])] == []
    assert ("worker", "batch") in found


def _import_graph() -> dict[str, set[str]]:
    """Each module's imports of the package's modules; of a folder's face only what comes through it."""
    names = {_dotted(PurePosixPath(p.relative_to(PACKAGE).as_posix())): p for p in _modules()}
    graph: dict[str, set[str]] = {}
    for name, source in names.items():
        found = {target for one in _imports(source, members=True) for target in _targets(one.module, names)}
        graph[name] = {target for target in found if target != name and not name.startswith(f"{target}.")}
    return graph


def _dotted(path: PurePosixPath) -> str:
    return ".".join(("tidesink", *path.with_suffix("").parts)).removesuffix(".__init__")


def _targets(imported: str, names: dict[str, Path]) -> list[str]:
    """The module that an imported name is, or else the one that it is taken from."""
    return [module for module in (imported, imported.rpartition(".")[0]) if module in names][:1]


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def _cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    reached = {module: _reached(graph, module) for module in graph}
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }


def test_no_import_cycles() -> None:
    """Imports in functions and for types alone count too."""
    assert [sorted(cycle) for cycle in _cycles(_import_graph())] == []


def test_cycles_are_found() -> None:
    """Guards the test above: it would also pass if no cycle were ever found."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert _cycles(graph) == {frozenset({"b", "c"})}
    assert _import_graph()["tidesink.codecs.base"] >= {"tidesink.events", "tidesink.errors"}


def _folder_graph() -> dict[str, set[str]]:
    """Each folder's imports of other folders. A module directly in the package counts as a folder."""
    graph: dict[str, set[str]] = {}
    for module, imported in _import_graph().items():
        folders = {_folder(name) for name in imported}
        graph.setdefault(_folder(module), set()).update(folders - {_folder(module)})
    return graph


def _folder(module: str) -> str:
    parts = module.split(".")
    is_folder = PACKAGE.joinpath(*parts[1:]).is_dir()
    return module if is_folder or len(parts) == 2 else ".".join(parts[:-1])


def test_no_folders_import_each_other_in_a_circle() -> None:
    assert [sorted(cycle) for cycle in _cycles(_folder_graph())] == []


def test_folders_are_found() -> None:
    """Guards the tests above: they would also pass if every module were a folder of its own."""
    graph = _folder_graph()
    assert {"tidesink.sinks.targets", "tidesink.sinks.targets.lake"} <= graph["tidesink.sinks.targets.delta"]
    assert {"tidesink.errors", "tidesink.events", "tidesink.typemap"} <= graph["tidesink.codecs"]
    assert "tidesink.codecs.open" not in graph


# Folders of ``sinks/targets`` whose code several targets share.
SHARED_BY_TARGETS: Final = {"lake", "sql", "stream"}


def test_targets_do_not_import_each_other() -> None:
    rooms = {
        (one.path.parts[2], one.module.split(".")[3], str(one.path))
        for one in ALL_IMPORTS
        if one.path.parts[:2] == ("sinks", "targets") and len(one.path.parts) > 3
        if one.module.startswith("tidesink.sinks.targets.") and one.module.count(".") > 3
    }
    assert [room for room in rooms if room[0] != room[1] and room[1] not in SHARED_BY_TARGETS] == []
    assert ("delta", "lake") in {room[:2] for room in rooms}


def test_kafka_knows_no_codec() -> None:
    """The list of protocols (``CODECS``) is enough for it."""
    codecs = {"canal_json", "debezium", "flat_avro"}
    knowing = {
        str(one.path)
        for one in ALL_IMPORTS
        if one.path.parts[:1] == ("sinks",) and one.module.startswith("tidesink.codecs.")
        if one.module.split(".")[2] in codecs
    }
    assert [path for path in knowing if path.startswith("sinks/kafka/")] == []
    assert "sinks/cuts/bounds.py" in knowing


def test_only_targets_that_encode_messages_know_protocols() -> None:
    knowing = {
        one.path.parts[2]
        for one in ALL_IMPORTS
        if one.path.parts[:2] == ("sinks", "targets") and one.module.startswith("tidesink.codecs")
    }
    assert knowing == {"stream"}


def test_pyspark_stays_in_its_places() -> None:
    strays = [
        f"{one.path}:{one.line}"
        for one in ALL_IMPORTS
        if one.module.split(".")[0] in {"pyspark", "py4j"}
        if not one.for_types_only and not _allowed_spark(one.path)
    ]
    assert strays == []


@pytest.mark.parametrize(
    "module", ["tidesink", "tidesink.codecs", "tidesink.schema_registry", "tidesink.dev"]
)
def test_import_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_the_command_line_starts_without_extras() -> None:
    """`pip install tidesink` is enough to decode and encode."""
    program = """
import sys

class Extras:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy", "sqlglot"}:
            raise ImportError(name)

sys.meta_path.insert(0, Extras())
from tidesink.cli.main import app
app(["--version"])
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("tidesink ")


def test_the_jars_are_found_without_importing_pyspark() -> None:
    program = (
        "import sys; from tidesink.sinks.spark.jvm import spark_jars_directory, spark_version;"
        "print(spark_version(), spark_jars_directory().is_dir(), 'pyspark' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1:] == ["True", "False"]
