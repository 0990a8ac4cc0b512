"""Rows read from a MySQL-compatible server are, text for text, what canal-json carries of them.

MariaDB cannot read as of a commit_ts; that statement is replaced, and tested by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.mysql_values import COLUMNS, make_wide, own_database
from tidesink.codecs.upstream import Upstream, open_upstream
from tidesink.errors import ConfigError, RowUnavailableError
from tidesink.events import TableId

pytestmark = pytest.mark.servers


@pytest.fixture
def upstream(mariadb_url: str) -> Iterator[Upstream]:
    """An upstream in a zone of its own, which MariaDB moves to no other moment."""
    found = open_upstream(mariadb_url, time_zone="Europe/Berlin", as_of=lambda _session, _commit_ts: None)
    yield found
    found.close()


@pytest.fixture
def database(mariadb_url: str) -> Iterator[tuple[sa.Connection, str]]:
    """A database of the test's own."""
    with own_database(mariadb_url) as found:
        yield found


def test_every_type_is_what_the_wire_would_have_carried(
    upstream: Upstream, database: tuple[sa.Connection, str]
) -> None:
    connection, schema = database
    make_wide(connection, "wide", "id")
    found = upstream.row(TableId(schema, "wide"), {"id": "1"}, commit_ts=5)
    assert found.texts == {name: text for name, (_, _, text) in COLUMNS.items()}
    assert list(found.texts) == list(COLUMNS)
    assert found.types["en"].members == ("red", "green", "b,l'ue")
    assert found.types["de"].sql == "decimal(10,2)"


@pytest.mark.parametrize(
    "key",
    ["ti", "bu", "bi", "f1", "d4", "de", "dw", "ch", "vc", "la", "bn", "vb", "b9", "b64", "en", "se", "da",
     "dt", "ts", "tm", "ye", "id, vc, ts"],
)  # fmt: skip
def test_a_key_of_every_type_finds_its_row_and_no_other(
    upstream: Upstream, database: tuple[sa.Connection, str], key: str
) -> None:
    connection, schema = database
    make_wide(connection, "keyed", key)
    names = key.split(", ")
    texts = {name: COLUMNS[name][2] for name in names}
    assert upstream.row(TableId(schema, "keyed"), texts, commit_ts=5).texts["bu"] == COLUMNS["bu"][2]
    other = {"ti": "5", "id": "2"}.get(names[0], COLUMNS[names[0]][2])
    if other != texts[names[0]]:
        with pytest.raises(RowUnavailableError, match="no rows"):
            upstream.row(TableId(schema, "keyed"), {**texts, names[0]: other}, commit_ts=5)


def test_a_key_with_quotes_in_it_is_a_value_and_nothing_else(
    upstream: Upstream, database: tuple[sa.Connection, str]
) -> None:
    connection, schema = database
    connection.exec_driver_sql("CREATE TABLE `a``b%%s:c` (`k``%%:x` varchar(50) primary key, n int)")
    connection.exec_driver_sql("INSERT INTO `a``b%%s:c` VALUES ('x'' OR ''1''=''1', 1), ('y', 2)")
    table = TableId(schema, "a`b%s:c")
    found = upstream.row(table, {"k`%:x": "x' OR '1'='1"}, commit_ts=5)
    assert found.texts == {"k`%:x": "x' OR '1'='1", "n": "1"}
    with pytest.raises(RowUnavailableError, match="no rows"):
        upstream.row(table, {"k`%:x": "' OR '1'='1"}, commit_ts=5)


def test_a_server_that_is_no_tidb_is_refused(mariadb_url: str) -> None:
    upstream = open_upstream(mariadb_url)
    with pytest.raises(ConfigError, match="is not TiDB"):
        upstream.row(TableId("mysql", "user"), {"Host": "x"}, commit_ts=5)
    upstream.close()


def test_a_user_that_is_refused_is_told_without_the_password(mariadb_url: str) -> None:
    url = sa.engine.make_url(mariadb_url).set(username="nobody", password="SECRET")
    upstream = open_upstream(url.render_as_string(hide_password=False))
    with pytest.raises(ConfigError, match="denies access to the user") as caught:
        upstream.row(TableId("mysql", "user"), {"Host": "x"}, commit_ts=5)
    assert "SECRET" not in str(caught.value)
    upstream.close()
