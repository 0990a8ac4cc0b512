"""Commands that messages suggest can be pasted: they name the config, and are commands that there are."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import typer

from tests.cli.samples import run
from tidesink.cli import terminal
from tidesink.cli.dead_letters import confirmed, drop_command, replay_lines, type_change_lines
from tidesink.cli.main import app
from tidesink.cli.terminal import chosen_config, complete, config_path, error_block, guarded
from tidesink.errors import (
    ConfigError,
    DecodeError,
    FramingError,
    SchemaMismatchError,
    SourceError,
    ValueOutOfRangeError,
    bad_reason,
    type_change_way,
    with_table,
)
from tidesink.events import TableId

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


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (
            (
                "registry",
                "register",
                "any-value",
                "--schema",
                "x.avsc",
                "--schema-registry={url}",
                "-o",
                "json",
            ),
            "Give --yes, or run `tidesink registry check` first",
        ),
        (
            ("resume", "{url}", "my.yaml"),
            "next:  tidesink resume 'http://joe:***@127.0.0.1:1/?token=***' -c my.yaml",
        ),
    ],
)
def test_a_suggested_command_repeats_no_secret_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], suggested: str
) -> None:
    """Stderr is often kept in logs, which a command line is not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("pipeline: shop\n")
    command = [word.format(url="http://joe:PASSWORD@127.0.0.1:1/?token=HIDDEN") for word in words]
    monkeypatch.setattr("sys.argv", ["tidesink", *command])
    result = run(*command)
    assert result.exit_code == 2
    assert suggested in result.stderr
    assert "PASSWORD" not in result.output
    assert "HIDDEN" not in result.output


@pytest.mark.parametrize(
    ("table", "place", "options", "command"),
    [
        ("shop.t", "0@7", {}, "tidesink dlq drop shop.t 0@7 --yes"),
        ("shop.t", None, {"--below": 7, "--error": None}, "tidesink dlq drop shop.t --below 7 --yes"),
        (None, None, {"--topic-id": "a b"}, "tidesink dlq drop --all --topic-id 'a b' --yes"),
    ],
)
def test_a_drop_that_nobody_confirms_names_itself_with_yes(
    monkeypatch: pytest.MonkeyPatch,
    table: str | None,
    place: str | None,
    options: dict[str, Any],
    command: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(ConfigError, match=r"^1 dead letter in .* Add --yes to drop") as caught:
        confirmed(1, "topic x", drop_command(table, place, options))
    assert error_block(caught.value).endswith(f"  next:  {command}\n")


def test_a_bad_record_of_a_type_change_has_the_way_out() -> None:
    """Whatever protocol it came in: its error has the column, and so has the letter's reason."""
    error = ValueOutOfRangeError("True is not a valid date.", column="born", table="shop.t")
    (line,) = type_change_lines("shop.t", "0@7", type(error).__name__, bad_reason(error))
    stays = "values that the target already has stay there"
    assert f"unless it is in the key or the filter, add born to except_column_list ({stays}" in line
    assert "stop the worker, run `tidesink dlq replay shop.t 0@7`" in line
    assert 'docs/schema-changes.md, "A type that cannot be followed"' in line
    page = (SOURCE.parent / "docs" / "schema-changes.md").read_text()
    assert "\n## A type that cannot be followed\n" in page
    assert "\n### Records that a type change made bad\n" in page
    odd = SchemaMismatchError("True is not a valid date.", column='it\'s "odd"')
    assert 'add it\'s "odd" to' in type_change_way("SchemaMismatchError", bad_reason(odd), "")


@pytest.mark.parametrize(
    "error",
    [
        ValueOutOfRangeError("The key has no value."),
        FramingError("The value is empty.", column="born"),
        SchemaMismatchError("The value is not a JSON object."),
    ],
)
def test_a_bad_record_without_a_wrong_value_has_no_way_of_a_type_change(error: DecodeError) -> None:
    assert type_change_way(type(error).__name__, bad_reason(error), "restart") == ""


def test_one_letter_and_several_have_their_own_words() -> None:
    counts = dict.fromkeys(("settled", "still_bad", "waiting", "expired", "former", "unsure", "later"), 0)
    lines = [*replay_lines({**counts, "settled": 1, "still_bad": 1, "later": 2})]
    assert lines[0].startswith("1 letter was removed without being applied: ")
    assert lines[1] == "1 letter stays: decoding still fails. `tidesink dlq show TABLE` shows the reason"
    assert lines[2].startswith("2 letters stay: ")


def test_a_table_may_be_named_like_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.yaml").write_text("pipeline: shop\n")
    result = run("resume", "shop.yaml", "-c", "other.yaml")
    assert "the command expects names" not in result.stderr


# A command in a text, and the word after it. In a text that is filled in later, braces stand for the value.
_NEXT_WORD: Final = re.compile(r"\btidesink ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)(.*)", re.DOTALL)


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each text of a module with its line, except docstrings. Braces stand for values."""
    for below in ast.iter_child_nodes(node):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            continue
        if isinstance(below, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in below.values)
            yield below.lineno, "".join(map(str, parts))
        elif isinstance(below, ast.Constant) and isinstance(below.value, str):
            yield below.lineno, below.value
        else:
            yield from _texts(below)


def _nameless(text: str, commands: frozenset[str]) -> Iterator[str]:
    for start in re.finditer(r"\btidesink ", text):
        match = _NEXT_WORD.match(text, start.start())
        words = match[1].split() if match else []
        for name in (" ".join(words), *words[:1]):
            if match and name in commands:
                after = text[start.end() + len(name) :]
                if not re.match(r"(?:\{| [A-Z{]{1,}| --)", after):
                    yield name
                break


def test_a_suggested_command_that_needs_a_table_names_one() -> None:
    """A table that is not known yet is TABLE, which is filled in once it is."""
    needing = {
        name
        for name, command in _commands().items()
        if any(part.param_type_name == "argument" and part.required for part in command.params)
    }
    needing |= {"ddl approve", "ddl reject", "dlq drop"}
    assert {"snapshot start", "resync", "resume", "dlq show"} <= needing
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in SOURCE.rglob("*.py")
        for line, text in _texts(ast.parse(path.read_text()))
        for name in _nameless(text, frozenset(needing))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run `tidesink snapshot start`, then", ["snapshot start"]),
        ("run `tidesink snapshot start TABLE`, then `tidesink resync`", ["resync"]),
        ("tidesink resync corrects them", ["resync"]),
        ("run `tidesink resync {}`", []),
        ("`tidesink diff`", []),
    ],
)
def test_a_command_without_its_table_is_seen(text: str, expected: list[str]) -> None:
    assert [*_nameless(text, frozenset({"snapshot start", "resync"}))] == expected


# A command in backquotes, or a command with words and options behind it that are not prose.
_SUGGESTED: Final = re.compile(
    r"`(tidesink [^`]*)`|(?<![`\w])(tidesink(?: [a-z][a-z-]*){1,2}(?: --[a-z][a-z-]*)*)"
)
# What stands for a value in a text that is filled in later.
_FIELD: Final = re.compile(r"\{[^{}]*\}")


class _Text(NamedTuple):
    """A text of the package. Braces stand for the values in it.

    values: What stands in the braces: source code in an f-string, a field with its braces in another text.
    """

    place: str
    text: str
    values: tuple[str, ...]


@cache
def _texts_of_the_package() -> tuple[_Text, ...]:
    """Docstrings count too, because help shows them."""
    return tuple(
        _Text(f"{path.relative_to(SOURCE)}:{line}", " ".join(text.replace("``", "`").split()), values)
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text, values in _all_texts(ast.parse(path.read_text()))
        if "tidesink" in text
    )


def _all_texts(node: ast.AST) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for below in ast.iter_child_nodes(node):
        if isinstance(below, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in below.values]
            fields = (part.value for part in below.values if isinstance(part, ast.FormattedValue))
            yield below.lineno, "".join(parts), tuple(map(ast.unparse, fields))
        elif isinstance(below, ast.Constant) and isinstance(below.value, str):
            yield below.lineno, _FIELD.sub("{}", below.value), tuple(_FIELD.findall(below.value))
        else:
            yield from _all_texts(below)


def _faults(text: str) -> Iterator[str]:
    """Yield what is wrong with the commands that a text suggests: one that there is not, or its options."""
    for match in _SUGGESTED.finditer(text):
        command: Any = _root()
        words = (match[1] or match[2]).replace("{}", " {} ").split()[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
        is_group, is_prose = hasattr(command, "commands"), match[2] and command is _root()
        if is_group and words and words[0] not in options | {"{}", "…"} and not is_prose:
            yield f"{command.name} has no command {words[0]}: {match[0]}"
        for word in [] if is_group else words:
            option = re.match(r"--?[a-z][a-z-]*", word)
            if option and option[0] not in options:
                yield f"{command.name} has no option {option[0]}: {match[0]}"


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def _unquoted(text: str, values: tuple[str, ...]) -> Iterator[str]:
    """Yield the values in a text's suggested commands that are not quoted for a shell.

    A text that is filled in later has the word TABLE for a table, and fields only for options, which are
    numbers.
    """
    for match in re.finditer(r"`tidesink [^`]*`|Next: tidesink .*", text):
        number = text[: match.start()].count("{}")
        for field in re.finditer(r"(\S*) ?(\S*)\{\}", match[0]):
            value, of_option = values[number], "--" in field[1] or "=" in field[2]
            number += 1
            is_quoted = value.startswith(("shlex.quote(", "DDL_COMMANDS[")) or value == "letter"
            if not is_quoted and not (of_option and value[0] == "{"):
                yield f"{value}: {match[0]}"


def test_every_suggested_command_is_one_that_there_is() -> None:
    found = [f"{place}: {fault}" for place, text, _ in _texts_of_the_package() for fault in _faults(text)]
    assert found == []


def test_every_value_in_a_suggested_command_is_quoted() -> None:
    """A table's name may have a space."""
    found = [
        f"{place}: {fault}"
        for place, text, values in _texts_of_the_package()
        for fault in _unquoted(text, values)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("take a snapshot (tidesink snapshot --where)", "snapshot has no command --where"),
        ("run `tidesink dlq replay TABLE --below {}`", "replay has no option --below"),
        ("run `tidesink rewind TABLE`", "has no command rewind"),
        ("run `tidesink offsets rewind TABLE --to-offset {}={}`, which tidesink can do", None),
        ("`tidesink snapshot status` shows it, and `tidesink ddl {} {}` decides", None),
    ],
)
def test_a_command_that_there_is_not_is_seen(text: str, expected: str | None) -> None:
    found = [*_faults(text)]
    assert len(found) == (expected is not None)
    assert all(expected in fault for fault in found if expected is not None)


@pytest.mark.parametrize(
    ("text", "value", "is_seen"),
    [
        ("run `tidesink resume {}`", "{}", True),
        ("run `tidesink resume {} --accept`", "table", True),
        ("run `tidesink dev up --dir {}`", "directory", True),
        ("run `tidesink resume {}`", "shlex.quote(str(table))", False),
        ("run `tidesink plan --sample {}`", "{larger}", False),
        ("{} is no table", "table", False),
    ],
)
def test_a_value_that_is_not_quoted_is_seen(text: str, value: str, *, is_seen: bool) -> None:
    assert bool([*_unquoted(text, (value,))]) is is_seen


def test_the_table_of_a_message_is_filled_in() -> None:
    text = "run `tidesink snapshot start TABLE` or tidesink resync TABLE. A TABLE stays"
    named = "run `tidesink snapshot start shop.t` or tidesink resync shop.t. A TABLE stays"
    assert with_table(text, TableId("shop", "t")) == named
    assert (
        with_table("`tidesink resume TABLE --accept`", "shop.a$b c")
        == "`tidesink resume 'shop.a$b c' --accept`"
    )
    error = SourceError("The log was cut. Run `tidesink resync TABLE`.", table="shop.t")
    assert "Run `tidesink resync shop.t`." in error_block(error)
    assert "Run `tidesink resync --config pg.yaml shop.t`." in complete(
        error.message, Path("pg.yaml"), table="shop.t"
    )
    assert complete(error.message, Path("pg.yaml")).endswith("resync --config pg.yaml TABLE`.")


LONE_NAME: Final = re.compile(r"again under another name(?! \(docs/schema-changes\.md)")


def test_no_message_advises_another_name_alone() -> None:
    """That a table is loaded again takes steps, which a page has; messages name it."""
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    assert not [path for path, text in texts.items() if LONE_NAME.search(text)]
    page = (SOURCE.parent / "docs" / "schema-changes.md").read_text()
    assert "\n## Load a table again\n" in page
