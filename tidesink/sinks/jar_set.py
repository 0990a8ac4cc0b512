"""Sets of Maven modules, and how they are written down for Ivy (``ivy.xml``, ``ivysettings.xml``)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import quoteattr

from tidesink.sinks.spark_versions import Coordinate

# No root: a Maven-compatible ibiblio resolver of Ivy means Maven Central by itself.
_SETTINGS: Final = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="{poms}"/>
  </resolvers>
</ivysettings>
"""


class Archive(NamedTuple):
    """An artifact that is not a jar: its Maven type and classifier."""

    type: str
    classifier: str


class JarSet(NamedTuple):
    """A named set of Maven modules that are fetched and kept together.

    With ``archive`` the modules are fetched alone, without their dependencies or parent poms.
    """

    name: str
    modules: tuple[Coordinate, ...]
    pinned: tuple[Coordinate, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    archive: Archive | None = None

    @property
    def folder_name(self) -> str:
        """Changes with the set's coordinates, so that an upgrade never meets the older jars."""
        return f"{self.name}-{hashlib.sha256(repr(tuple(self)).encode()).hexdigest()[:8]}"


def write_ivy_files(work: Path, jar_set: JarSet) -> None:
    """Write ``ivy.xml`` and ``ivysettings.xml`` for the set into a folder."""
    (work / "ivy.xml").write_text(ivy_xml(jar_set), encoding="utf-8")
    # Without poms an archive can be had although its parent pom is not in the repository.
    poms = "true" if jar_set.archive is None else "false"
    (work / "ivysettings.xml").write_text(_SETTINGS.format(poms=poms), encoding="utf-8")


def ivy_xml(jar_set: JarSet) -> str:
    """The set as an Ivy module descriptor."""
    dependencies = [_dependency(module, jar_set.archive) for module in jar_set.modules]
    excludes = [f"<exclude org={quoteattr(g)} module={quoteattr(n)}/>" for g, n in jar_set.excluded]
    pins = [f"<override {_module('module', p)}/>" for p in jar_set.pinned]
    return "\n".join(
        [
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
            f'<info organisation="tidesink" module={quoteattr(jar_set.name)}/>',
            '<configurations><conf name="default"/></configurations>',
            "<dependencies>", *dependencies, *excludes, *pins, "</dependencies>",
            "</ivy-module>",
        ]
    )  # fmt: skip


def _dependency(module: Coordinate, archive: Archive | None) -> str:
    attributes = f'{_module("name", module)} conf="default->default"'
    if archive is None:
        return f"<dependency {attributes}/>"
    kind = quoteattr(archive.type)
    return (
        f'<dependency {attributes} transitive="false"><artifact name={quoteattr(module.name)} type={kind} '
        f"ext={kind} m:classifier={quoteattr(archive.classifier)}/></dependency>"
    )


def _module(attribute: str, module: Coordinate) -> str:
    group, name, version = map(quoteattr, module)
    return f"org={group} {attribute}={name} rev={version}"
