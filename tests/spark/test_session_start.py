"""A session starts with all of its settings, shows none of them to other users, and says nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.command_lines import command_lines_below, seen_meanwhile
from tests.sessions import SMALL_SPARK

_PATIENCE_SECONDS = 240
_SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": "opensesame:= #!\\1 é€😀",
    "spark.sql.catalog.shop.password": "open\tsesame\n2",
    "spark.tide.empty": "",
}
# A session with settings from stdin, and a job of Python's; prints what Spark and its JVM have.
_SCRIPT = """
import json, os, sys
from tidesink.sinks.spark.session import build_session
conf = json.load(sys.stdin)
spark = build_session(master="local[1]", conf=conf, driver_memory="700m")
spark.range(4).mapInArrow(lambda batches: batches, "id long").collect()
java = spark.sparkContext._jvm.java.lang
print(json.dumps({
    "conf": {name: spark.sparkContext.getConf().get(name) for name in conf},
    "java": {name: java.System.getProperty(name) for name in ("tide.x", "spark.hadoop.fs.s3a.secret.key")},
    "heap": java.Runtime.getRuntime().maxMemory(),
    "submit": os.environ.get("PYSPARK_SUBMIT_ARGS"),
}))
"""


def _modes_of_settings(folder: Path) -> Iterator[int]:
    """The modes of the files that hand settings over, which are there while the JVM starts."""
    for file in folder.glob("tidesink-*.properties"):
        with suppress(FileNotFoundError):
            yield stat.S_IMODE(file.stat().st_mode)


def test_the_values_of_settings_are_on_no_command_line_and_in_no_file(
    kept_classes: bool, tmp_path: Path
) -> None:
    # The directory has no jars to bring: it shows that Spark looks for them.
    jars = tmp_path / "more.jar"
    options = f"{SMALL_SPARK['spark.driver.extraJavaOptions']} -Dtide.x=1"
    conf = {**_SECRETS, "spark.driver.extraJavaOptions": options, "spark.jars": f"file://{jars}"}
    with (
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            text=True,
        ) as process,
        command_lines_below(process.pid) as lines,
        seen_meanwhile(lambda: _modes_of_settings(tmp_path)) as modes,
    ):
        printed, said = process.communicate(json.dumps(conf), timeout=_PATIENCE_SECONDS)
    assert process.returncode == 0, said
    found = json.loads(printed)
    assert {name: found["conf"][name] for name in _SECRETS} == _SECRETS
    assert found["java"] == {"tide.x": "1", "spark.hadoop.fs.s3a.secret.key": next(iter(_SECRETS.values()))}
    assert found["heap"] <= 700 << 20
    assert found["submit"] is None
    seen = b"\0".join(lines)
    for part in (b"launcher.Main", b"SparkSubmit", b"-Dtide.x=1", b"-Xmx700m", b"spark.daemon"):
        assert part in seen
    assert b"sesame" not in seen
    assert "sesame" not in said
    assert modes == {0o600}
    assert not [*tmp_path.glob("tidesink-*")]


def test_a_file_of_properties_beside_ours_is_refused() -> None:
    script = "from tidesink.sinks.spark.session import build_session\nbuild_session(jars=[])"
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--properties-file=mine.conf pyspark-shell"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert "ConfigError: PYSPARK_SUBMIT_ARGS passes a --properties-file to Spark" in done.stderr
    assert "spark-defaults.conf" in done.stderr


# A session that logs at each level, and two jobs that fail: a task of Python's and an expression.
_LOGS = """
import json, sys
from tidesink.sinks.spark.session import build_session

def fail(batches):
    for batch in batches:
        raise ValueError("the row is s3cr3t\\nValueError: s3cr3t")
    yield

spark = build_session(master="local[1]", conf=json.load(sys.stdin), driver_memory="700m")
rows = spark.range(4)
rows.collect()
jvm = spark.sparkContext._jvm
error = jvm.java.lang.IllegalStateException("s3cr3t in\\nan exception")
for name in ("a.Test", "org.apache.spark.scheduler.Told"):
    log = jvm.org.apache.logging.log4j.LogManager.getLogger(name)
    for level in ("error", "warn", "info"):
        getattr(log, level)(f"logged as {level}")
        getattr(log, level)("Putting a block failed due to a.b.SomeException: s3cr3t")
        getattr(log, level)("logged\\ns3cr3t", error)
code = "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator"
jvm.org.apache.logging.log4j.LogManager.getLogger(code).error("Code grows beyond 64 KB")
for failing in (rows.mapInArrow(fail, "id long"), rows.selectExpr("raise_error(concat('s3cr', '3t ', id))")):
    try:
        failing.collect()
    except Exception as exc:
        assert "s3cr3t" in str(exc)
"""


def _logged(conf: dict[str, str]) -> list[str]:
    """What a session with these settings shows, each line without its time."""
    given = json.dumps({**SMALL_SPARK, **conf})
    done = subprocess.run(
        [sys.executable, "-c", _LOGS], input=given, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return [line.split(maxsplit=2)[-1] for line in done.stderr.splitlines()]


def _of_tests(level: str) -> list[str]:
    error = "java.lang.IllegalStateException"
    told = [f"{level} Told: {text}" for text in ("logged as " + level.lower(), "", "logged")]
    told[1] += "Putting a block failed due to a.b.SomeException"
    told[2] += f" ({error})"
    return [*[f"{level} Test"] * 2, f"{level} Test: {error}", *told]


_FAILED: Final = [
    "ERROR Executor: org.apache.spark.api.python.PythonException",
    "ERROR TaskSetManager: Task 0 in stage 1.0 failed 1 times; aborting job",
    "ERROR Executor: org.apache.spark.SparkRuntimeException",
    "ERROR TaskSetManager: Task 0 in stage 2.0 failed 1 times; aborting job",
]


def test_errors_alone_are_shown_and_no_value_of_a_row(kept_classes: bool) -> None:
    assert _logged({}) == [f"Spark {line}" for line in (*_of_tests("ERROR"), *_FAILED)]


def test_warnings_that_are_asked_for_show_no_value_of_a_row_either(kept_classes: bool) -> None:
    lines = _logged({"spark.log.level": "WARN"})
    assert not [line for line in lines if "s3cr3t" in line]
    lost = [f"WARN TaskSetManager: Lost task 0.0 in stage {number}.0 (TID {number})" for number in (1, 2)]
    for line in (*_of_tests("ERROR"), *_of_tests("WARN"), *_FAILED, *lost):
        assert f"Spark {line}" in lines
    assert not [line for line in lines if "INFO" in line]
