"""Commands that messages suggest can be pasted: they name the config, and are commands that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from tests.cli.samples import run
from tidesink.cli import terminal
from tidesink.cli.main import app
from tidesink.cli.terminal import chosen_config, complete, config_path, error_block, guarded
from tidesink.errors import ConfigError

SOURCE = Path(terminal.__file__).parents[1]


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        inside = getattr(command, "commands", {})
        found |= {f"{name} {one}": below for one, below in inside.items()} or {name: command}
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tidesink ddl approve shop.t or tidesink ddl reject shop.t", 2),
        ("run `tidesink resync shop.t`, then `tidesink resume shop.t`", 2),
        ("tidesink run starts the worker", 1),
        ("tidesink dlq drop TABLE --below 7", 1),
        ("a tidesink.yaml, and tidesink itself", 0),
    ],
)
def test_a_suggested_command_names_the_config(text: str, expected: int) -> None:
    found = complete(text, Path("my pg.yaml"))
    assert found.count(" --config 'my pg.yaml'") == expected
    assert re.sub(" --config 'my pg.yaml'", "", found) == text
    assert complete(found, Path("my pg.yaml")) == found
    assert complete(text, terminal.DEFAULT_CONFIG) == text


def test_every_command_takes_the_config_in_one_way_and_is_completed() -> None:
    """Those that work with a pipeline; a codec, a registry and the local stack need none."""
    apart = ("init", "decode", "encode", "registry ", "dev ")
    for name, command in _commands().items():
        if name.startswith(apart):
            continue
        options = {one for parameter in command.params for one in parameter.opts}
        assert {"-c", "--config"} <= options, name
        assert complete(f"tidesink {name} x", Path("pg.yaml")) == f"tidesink {name} --config pg.yaml x"


def test_an_error_of_a_command_names_its_config_in_what_it_suggests() -> None:
    error = ConfigError("no change waits: tidesink ddl list shows the waiting changes")
    error.next_step = "tidesink ddl reject abcd"
    shown = []

    @guarded
    def command() -> None:
        config_path(None, Path("pg.yaml"))
        shown.append(error_block(error))

    command()
    shown.append(error_block(error))
    assert shown[0] == (
        "ConfigError: no change waits: tidesink ddl list --config pg.yaml shows the waiting changes\n"
        "  next:  tidesink ddl reject --config pg.yaml abcd\n"
    )
    assert "--config" not in shown[1]


def test_no_config_at_all_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="Give one with --config FILE"):
        chosen_config(None, None)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("ddl list {} shop.orders", "ddl list -c {} shop.orders"),
        ("dlq drop {} --all --yes", "dlq drop -c {} --all --yes"),
        ("resume {}", "resume -c {}"),
        ("offsets rewind {} --to-beginning", "offsets rewind -c {} --to-beginning"),
    ],
)
def test_a_config_in_place_of_a_table_is_answered_with_the_command_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, meant: str
) -> None:
    file = tmp_path / "my tables.yaml"
    file.write_text("pipeline: shop\n")
    command = [one.replace("{}", str(file)) for one in words.split()]
    monkeypatch.setattr("sys.argv", ["tidesink", *command])
    result = run(*command)
    assert result.exit_code == 2
    assert "is a config file, but the command expects names" in result.stderr
    assert f"next:  tidesink {meant.replace('{}', repr(str(file)))}\n" in result.stderr


def test_a_table_may_be_named_like_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.yaml").write_text("pipeline: shop\n")
    result = run("resume", "shop.yaml", "-c", "other.yaml")
    assert "the command expects names" not in result.stderr


LONE_NAME: Final = re.compile(r"again under another name(?! \(docs/schema-changes\.md)")


def test_no_message_advises_another_name_alone() -> None:
    """That a table is loaded again takes steps, which a page has; messages name it."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    assert not [path for path, text in texts.items() if LONE_NAME.search(text)]
    page = (SOURCE.parent / "docs" / "schema-changes.md").read_text()
    assert "\n## Load a table again\n" in page
