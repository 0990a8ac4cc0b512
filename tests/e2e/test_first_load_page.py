"""The commands of docs/first-load.md do what the page says, on a real database, broker and lake."""

from __future__ import annotations

import json
import shlex
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import CliRunner

from examples.first_load.mariadb import MariaDb, running_mariadb
from examples.first_load.shop import UNTOUCHED, LiveShop
from tests.e2e.replay import Servers
from tests.full import FULL
from tests.sessions import SMALL_SPARK
from tests.unit.repository.test_first_load_page import snippets
from tidesink.cli.main import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.servers]

_CHANGES = 200


def _write_changes(shop: LiveShop) -> None:
    """What a changefeed sends from its start on."""
    stop = threading.Event()
    writer = threading.Thread(target=shop.change_until, args=(stop,), kwargs={"rate": 2_000.0})
    writer.start()
    while writer.is_alive() and shop.changes < _CHANGES:
        time.sleep(0.02)
    stop.set()
    writer.join()
    assert shop.changes >= _CHANGES


def _written_config(folder: Path, servers: Servers, server: MariaDb) -> None:
    """The page's config, with the addresses of this run."""
    found = yaml.safe_load(snippets("yaml")[2])
    topics = f"{servers['prefix']}{found['source']['topics']}"
    found["source"] |= {"brokers": servers["brokers"], "topics": topics, "database": server.url}
    found["spark"] = {"master": "local[2]", "conf": {**SMALL_SPARK, "spark.driver.memory": "1g"}}
    (folder / "tidesink.yaml").write_text(json.dumps(found), encoding="utf-8")


def _run(command: str, *, code: int = 0) -> str:
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == code, f"{command}\n{result.output}"
    return result.output


@FULL
def test_the_page_does_what_it_says(
    spark: SparkSession, tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    init, check, load, shown, equal, differing, again, after = snippets("sh")
    with running_mariadb(tmp_path / "server", "innodb-buffer-pool-size=16M") as server:
        rule = f"{servers['prefix']}{{schema}}_{{table}}"
        with closing(LiveShop(server, servers["brokers"], seed=1, topics=rule)) as shop:
            rows = shop.load(2_000)
            _write_changes(shop)
        changefeed = snippets("toml")[0].replace("{schema}_{table}", rule)
        Path("changefeed.toml").write_text(changefeed, encoding="utf-8")
        assert "wrote tidesink.yaml" in _run(init.replace("127.0.0.1:9092", servers["brokers"]))
        _written_config(tmp_path, servers, server)
        validate, plan = check.splitlines()
        _run(validate)
        assert "shop.orders" in _run(plan)
        _run(load)
        snapshots, status = map(_run, shown.splitlines())
        assert snapshots.count("done") == 2
        assert "shop.customers" in status
        assert rows > 2_000
        _run(equal)
        lake = tmp_path / "lake" / "shop" / "orders"
        spark.sql(f"UPDATE delta.`{lake}` SET total = total + 1 WHERE id = {UNTOUCHED}")  # noqa: S608
        assert f"(id={UNTOUCHED}) differs in total" in _run(differing, code=3)
        (line,) = Path("differing.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(line)["key"] == {"id": str(UNTOUCHED)}
        assert "snapshot requested" in _run(again)
        for command in after.splitlines():
            _run(command)
