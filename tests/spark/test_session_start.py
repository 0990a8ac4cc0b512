"""A session starts with all of its settings, and shows none of them to other users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.command_lines import command_lines_below
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
    assert not [*tmp_path.glob("tidesink-*")]


def test_a_file_of_properties_beside_ours_is_refused() -> None:
    script = "from tidesink.sinks.spark.session import build_session\nbuild_session(jars=[])"
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--properties-file=mine.conf pyspark-shell"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert "ConfigError: PYSPARK_SUBMIT_ARGS gives Spark a --properties-file" in done.stderr
    assert "spark-defaults.conf" in done.stderr
