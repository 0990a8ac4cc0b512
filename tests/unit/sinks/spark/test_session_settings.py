"""The settings of a Spark session, without starting one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tidesink.errors import ConfigError
from tidesink.sinks.spark import daemon
from tidesink.sinks.spark.session import FIXED, LOSES, archive_options, local_cores, session_settings


def test_what_values_depend_on_stays() -> None:
    settings = session_settings(master="local[2]", conf={"spark.sql.ansi.enabled": "TRUE"})
    assert settings.items() >= FIXED.items()


@pytest.mark.parametrize("name", FIXED)
def test_a_conf_that_changes_values_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        session_settings(master="local[2]", conf={name: "other"})
    assert FIXED[name] in str(caught.value)


@pytest.mark.parametrize(("name", "value"), LOSES.items())
def test_a_conf_that_cuts_values_short_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        session_settings(master="local[2]", conf={name: value.lower()})
    session_settings(master="local[2]", conf={name: "TIMESTAMP_MICROS"})


def test_the_users_conf_wins_elsewhere_and_adds_to_javas_options() -> None:
    conf = {"spark.sql.shuffle.partitions": "7", "spark.driver.extraJavaOptions": "-Dx=1"}
    settings = session_settings(master="local[2]", conf=conf, driver_memory="3g")
    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["spark.driver.memory"] == "3g"
    options = settings["spark.driver.extraJavaOptions"]
    assert options.endswith("-Dx=1")
    assert "-DontCompileHugeMethods" in options


_JAVA = "spark.driver.extraJavaOptions"


@pytest.fixture
def conf_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_spark_logs_by_our_configuration_unless_the_user_has_one(
    conf_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def option(conf: dict[str, str]) -> bool:
        return "spark/log4j2.properties" in session_settings(master="local[2]", conf=conf)[_JAVA]

    (conf_directory / "log4j2.properties.template").touch()
    assert option({_JAVA: "-Dx=1"})
    assert not option({_JAVA: "-Dlog4j.configurationFile=mine.xml"})
    with monkeypatch.context() as environment:
        environment.setenv("LOG4J_CONFIGURATION_FILE", "mine.xml")
        assert not option({})
    (conf_directory / "log4j2.xml").touch()
    assert not option({})


def test_one_jvm_compiles_with_c1_unless_the_user_has_options_of_their_own() -> None:
    name = "spark.driver.extraJavaOptions"
    usual = session_settings(master="local[*]", conf={})[name]
    assert "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC" in usual
    for conf in ({name: "-XX:+UseG1GC"}, {name: ""}):
        given = session_settings(master="local[2]", conf=conf)[name]
        assert "Tiered" not in given
        assert "Parallel" not in given


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]", "yarn"])
def test_the_jvms_of_a_cluster_have_java_s_own_compiler_and_collector(master: str) -> None:
    settings = session_settings(master=master, conf={})
    assert not any("Tiered" in settings[f"spark.{part}.extraJavaOptions"] for part in ("driver", "executor"))


def test_the_workers_of_one_machine_are_forked_with_their_modules() -> None:
    name = "spark.python.daemon.module"
    assert session_settings(master="local[2]", conf={})[name] == daemon.__name__
    assert session_settings(master="local[2]", conf={name: "pyspark.daemon"})[name] == "pyspark.daemon"
    # An executor that lacks the package could not even say so.
    assert name not in session_settings(master="local-cluster[2,1,1024]", conf={})


_FORKS = """
import os
from importlib import import_module
from tidesink.sinks.spark.daemon import MODULES
for name in MODULES:
    import_module(name)
child = os.fork()
if not child:
    import pyarrow as pa
    table = pa.table({"n": pa.array(range(200_000, 0, -1))})
    found = table.sort_by("n").group_by("n").aggregate([("n", "count")]).num_rows
    os._exit(0 if found == 200_000 else 1)
print(os.waitpid(child, 0)[1])
"""


def test_a_process_that_was_forked_with_them_computes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize(("master", "cores"), [("local[3]", 3), ("local[4,2]", 4), ("local", 1)])
def test_shuffles_are_small_on_one_machine(master: str, cores: int) -> None:
    assert local_cores(master) == cores
    assert session_settings(master=master, conf={})["spark.sql.shuffle.partitions"] == str(2 * cores)


def test_a_cluster_starts_with_many_partitions() -> None:
    assert local_cores("spark://host:7077") == 100
    assert local_cores("local[*]") >= 1


def test_a_jar_that_is_not_there_is_said_and_spark_starts_without_kept_classes(tmp_path: Path) -> None:
    missing = tmp_path / "connector.jar"
    with capture_logs() as said:
        assert archive_options([missing]) == ""
    assert [(one["log_level"], one["jar"]) for one in said] == [("warning", str(missing))]
    assert "is its path right?" in said[0]["event"]
