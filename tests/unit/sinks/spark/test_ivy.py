"""What Ivy is asked for, and what counts as fetched. (Fetching itself: tests/e2e/test_fetch.py.)"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tidesink.dev.stack import APICURIO, KAFKA
from tidesink.errors import ConfigError
from tidesink.sinks.spark import jvm as ivy
from tidesink.sinks.spark.jvm import (
    CONNECTORS,
    MARKER,
    Coordinate,
    JarSet,
    cache_directory,
    connector_set,
    is_complete,
    ivy_xml,
)

M = "{http://ant.apache.org/ivy/maven}"
PINNED = (Coordinate("o.t", "two", "0.9"),)
SPARK = JarSet("s", CONNECTORS["4.1"].connectors, pinned=PINNED, excluded=(("o.s", "*"),))


def _xml(jar_set: JarSet) -> ET.Element:
    return ET.fromstring(ivy_xml(jar_set))  # noqa: S314 - our own text


@pytest.mark.parametrize("jar_set", [KAFKA, APICURIO, SPARK], ids=lambda s: s.name)
def test_every_module_is_asked_for_at_its_version(jar_set: JarSet) -> None:
    asked = {(d.get("org"), d.get("name"), d.get("rev")) for d in _xml(jar_set).iter("dependency")}
    assert asked == {tuple(module) for module in jar_set.modules}


def test_pins_and_exclusions_reach_ivy() -> None:
    tree = _xml(SPARK)
    pins = [(o.get("org"), o.get("module"), o.get("rev")) for o in tree.iter("override")]
    assert pins == [tuple(pin) for pin in SPARK.pinned]
    assert [(e.get("org"), e.get("module")) for e in tree.iter("exclude")] == [("o.s", "*")]


def test_an_archive_comes_alone_with_its_classifier() -> None:
    [dependency] = _xml(APICURIO).iter("dependency")
    [artifact] = dependency.iter("artifact")
    assert dependency.get("transitive") == "false"
    assert (artifact.get("ext"), artifact.get(f"{M}classifier")) == ("tar.gz", "all")


@pytest.mark.parametrize("version", ["4.0.2", "4.1", "4.1.1"])
def test_connectors_of_known_versions(version: str) -> None:
    names = [module.name for module in connector_set(version).connectors]
    assert names == [f"delta-spark_{version[:3]}_2.13"]


def test_an_unknown_spark_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"Spark 3\.5\.1\. Install pyspark 4\.0, 4\.1"):
        connector_set("3.5.1")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TIDESINK_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/tidesink"),
        ({"HOME": "/c"}, "/c/.cache/tidesink"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("TIDESINK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_directory() == Path(expected)


def _complete(folder: Path) -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "a.jar").write_bytes(b"12345")
    (folder / "b.jar").write_bytes(b"1")
    ivy._mark(folder)
    return folder


def test_complete_means_marked_and_whole(tmp_path: Path) -> None:
    assert is_complete(_complete(tmp_path / "x"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / MARKER).unlink(),
        lambda folder: (folder / MARKER).write_text('{"b.jar":'),
        lambda folder: (folder / "lib" / "a.jar").unlink(),
        lambda folder: (folder / "lib" / "a.jar").write_bytes(b"123"),
    ],
    ids=["no marker", "cut marker", "a file gone", "a file cut"],
)
def test_a_damaged_folder_is_not_complete(tmp_path: Path, damage: object) -> None:
    folder = _complete(tmp_path / "x")
    assert callable(damage)
    damage(folder)
    assert not is_complete(folder)


def test_other_coordinates_get_another_folder() -> None:
    newer = JarSet("kafka", (Coordinate("org.apache.kafka", "kafka_2.13", "4.3.2"), KAFKA.modules[1]))
    assert newer.folder_name != KAFKA.folder_name


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, []),
        ({"https_proxy": "http://me:secret@proxy:81"}, ["-Dhttps.proxyHost=proxy", "-Dhttps.proxyPort=81"]),
        (
            {"HTTPS_PROXY": "http://p", "NO_PROXY": "a,b"},
            ["-Dhttps.proxyHost=p", "-Dhttps.proxyPort=3128", "-Dhttp.nonProxyHosts=a|b"],
        ),
    ],
)
def test_proxies_are_honoured(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: list[str]
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ivy._proxy_options() == expected


def test_settings_that_do_not_exist_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDESINK_IVY_SETTINGS", str(tmp_path / "nowhere.xml"))
    with pytest.raises(ConfigError, match=r"TIDESINK_IVY_SETTINGS is .*nowhere\.xml"):
        ivy._ivy_command(tmp_path, [])


def test_the_files_of_a_download_are_counted_and_not_listed() -> None:
    now, lines = [0.0], list[str]()
    downloads = ivy.Downloads("spark-4.0", lines.append, lambda: now[0])
    for number in range(35):
        now[0] += 0.25
        downloads.begun(f"{number}.jar")
    assert downloads.files == 35
    assert lines == ["spark-4.0: downloading file 20 (19.jar)"]
