"""TiCDC's codec options as command-line options, under TiCDC's names.

``decode`` needs none of them: what is given is compared with what the bytes say. A boolean may be
written as a flag (``--enable-tidb-extension``) or as in a sink URI (``--enable-tidb-extension=true``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand

from tidesink.codecs.base import CodecOptions, DebeziumModes
from tidesink.codecs.open import CODECS
from tidesink.codecs.open import protocol_named as known_protocol
from tidesink.config.fields import Interpolated
from tidesink.config.source import known_time_zone
from tidesink.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

Given = Mapping[str, Any]

_FLAGS: Final = {
    "enable_tidb_extension": "The topic carries TiDB's extension fields.",
    "avro_enable_watermark": "The topic carries watermark events (flat-avro).",
    "avro_include_before_value": "Values carry the row before (flat-avro, new TiCDC).",
    "content_compatible": "Full column types in mysqlType (canal-json).",
    "only_output_updated_columns": "Updates carry changed columns only in old (canal-json).",
    "delete_only_output_handle_key_columns": "Deletes carry the key only (canal-json).",
    "output_row_key": "Rows carry TiDB's row key (canal-json, new TiCDC).",
    "claim_check_raw_value": "Claim-check files hold the bare value; for encoding (canal-json).",
    "output_raw_change_event": "Key changes are not split by the producer.",
    "force_replicate": "Accepted as in the changefeed; has no effect here.",
    "debezium_disable_schema": "Messages carry no schema (debezium); for encoding.",
    "debezium_include_start_ts": "The source block has start_ts (debezium); for encoding.",
    "debezium_output_old_value": "Updates carry the old row (debezium); for encoding.",
    "debezium_unwrapped": "ExtractNewRecordState flattened the topic: a null value alone is a delete.",
}
# Go's ParseBool, which TiCDC uses, takes these.
_BOOLEANS: Final = dict.fromkeys(("1", "t", "true"), True) | dict.fromkeys(("0", "f", "false"), False)
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "avro_decimal_handling_mode": ("precise", "string"),
    "avro_bigint_unsigned_handling_mode": ("long", "string"),
    "integrity_check_level": ("none", "correctness"),
    "large_message_handle_option": ("none", "claim-check", "handle-key-only"),
    "large_message_handle_compression": ("none", "snappy", "lz4"),
    "producer": ("classic", "new"),
    "checksum": ("off", "warn", "reject"),
    "decimal_handling_mode": ("precise", "string", "double"),
    "bigint_unsigned_handling_mode": ("long", "precise", "string"),
    "binary_handling_mode": ("bytes", "base64", "base64-url-safe", "hex"),
    "time_precision_mode": (
        "adaptive",
        "adaptive_time_microseconds",
        "connect",
        "isostring",
        "microseconds",
        "nanoseconds",
    ),
    "interval_handling_mode": ("numeric", "string"),
    "hstore_handling_mode": ("json", "map"),
    "decimal_format": ("base64", "numeric"),
}
_TEXTS: Final = {
    "cluster_id": "TiCDC's cluster id, in names and source (debezium); for encoding.",
    "avro_decimal_handling_mode": "How decimals are written: precise or string (flat-avro).",
    "avro_bigint_unsigned_handling_mode": "How unsigned bigints are written: long or string (flat-avro).",
    "integrity_check_level": "none, or correctness: rows carry checksums (flat-avro).",
    "large_message_handle_option": "none, claim-check or handle-key-only; for encoding (canal-json).",
    "large_message_handle_compression": "none, snappy or lz4; for encoding (canal-json).",
    "claim_check_storage_uri": "Where messages that were too large are: a directory or a URL (canal-json).",
    "upstream_url": "SQLAlchemy URL of the upstream TiDB, for rows reduced to their key (canal-json).",
    "terminator": "Accepted as in the changefeed; has no effect here.",
    "time_zone": "The changefeed's time zone.",
    "checksum": "off, warn or reject: what to do if a row's checksum does not match (flat-avro).",
    "producer": "Which TiCDC writes, classic or new; for encoding.",
    "namespace": "The changefeed's namespace; for encoding.",
    "keyspace": "The same, as new TiCDC calls it.",
    "decimal_handling_mode": "Debezium's decimal.handling.mode: precise, string or double.",
    "bigint_unsigned_handling_mode": "Debezium's bigint.unsigned.handling.mode: long, precise or string.",
    "binary_handling_mode": "Debezium's binary.handling.mode: bytes, base64, base64-url-safe or hex.",
    "time_precision_mode": "Debezium's time.precision.mode; adaptive for Postgres' default.",
    "interval_handling_mode": "Debezium's interval.handling.mode: numeric or string.",
    "hstore_handling_mode": "Debezium's hstore.handling.mode: json or map.",
    "decimal_format": "decimal.format of Connect's JSON converter: base64 or numeric.",
    "unavailable_value_placeholder": "Debezium's unavailable.value.placeholder.",
}
_DEBEZIUM: Final = frozenset(one.name for one in fields(DebeziumModes))
_NUMBERS: Final = {
    "max_message_bytes": "The largest message the producer writes; for encoding.",
    "max_decompressed_bytes": "The largest size of one message after decompression (canal-json).",
}
# Options that may hold a secret: each is also read from the environment, or as ${env:NAME} or ${file:path}.
_SECRETS: Final = {
    "claim_check_storage_uri": "TIDESINK_CLAIM_CHECK_STORAGE_URI",
    "upstream_url": "TIDESINK_UPSTREAM_URL",
}
# Options that CodecOptions has under another name, or not at all, since the messages say it.
_MEANING: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "force_replicate": lambda _: {},
    "integrity_check_level": lambda level: {"row_checksum": level == "correctness"},
    "keyspace": lambda name: {"namespace": name},
    "terminator": lambda _: {},
}

# Under which heading --help shows an option; the others are for every protocol.
_HEADINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "Options of flat-avro": (
        "avro_enable_watermark",
        "avro_include_before_value",
        "avro_decimal_handling_mode",
        "avro_bigint_unsigned_handling_mode",
        "integrity_check_level",
        "checksum",
    ),
    "Options of canal-json": (
        "content_compatible",
        "only_output_updated_columns",
        "delete_only_output_handle_key_columns",
        "output_row_key",
        "large_message_handle_option",
        "large_message_handle_compression",
        "claim_check_storage_uri",
        "claim_check_raw_value",
        "upstream_url",
        "max_decompressed_bytes",
    ),
    "Options of debezium": (
        "debezium_disable_schema",
        "debezium_include_start_ts",
        "debezium_output_old_value",
        "debezium_unwrapped",
        "cluster_id",
        "decimal_handling_mode",
        "bigint_unsigned_handling_mode",
        "binary_handling_mode",
        "time_precision_mode",
        "interval_handling_mode",
        "hstore_handling_mode",
        "decimal_format",
        "unavailable_value_placeholder",
    ),
}
_HEADING_OF: Final = {name: heading for heading, names in _HEADINGS.items() for name in names}
_FOR_ALL: Final = "Options of the changefeed"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _parameters() -> Iterator[tuple[str, Any]]:
    for name, text in _FLAGS.items():
        flags = f"{_option(name)}/--no{_option(name)[1:]}"
        yield name, Annotated[bool | None, typer.Option(flags, help=text, rich_help_panel=_heading(name))]
    for name, text in _TEXTS.items():
        option = typer.Option(
            _option(name), help=text, rich_help_panel=_heading(name), envvar=_SECRETS.get(name)
        )
        yield name, Annotated[str | None, option]
    for name, text in _NUMBERS.items():
        option = typer.Option(_option(name), min=1, help=text, rich_help_panel=_heading(name))
        yield name, Annotated[int | None, option]


def _heading(name: str) -> str:
    return _HEADING_OF.get(name, _FOR_ALL)


def with_options(
    name: str, parameters: Mapping[str, Any], made: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[P, R]], Callable[..., R]]:
    """Gives a command a group of options, in front of ``--output``.

    ``parameters``: their annotations by name. What ``made`` makes of their values is the command's argument
    ``name``; None stands for an option that was not given.
    """

    def decorated(command: Callable[P, R]) -> Callable[..., R]:
        own = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def run(**values: Any) -> R:
            given = {option: values.pop(option, None) for option in parameters}
            return command(**{name: made(given)}, **values)  # type: ignore[call-arg]

        kept = [one.replace(kind=_KEYWORD) for option, one in own.parameters.items() if option != name]
        added = [
            inspect.Parameter(option, _KEYWORD, default=None, annotation=annotation)
            for option, annotation in parameters.items()
        ]
        last = [one for one in kept if one.name == "output"]
        listed = [*(one for one in kept if one.name != "output"), *added, *last]
        del run.__wrapped__  # else the command's own signature would be read
        run.__signature__ = own.replace(parameters=listed)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in listed}
        return run

    return decorated


_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, under the names of CodecOptions; an empty text is TiCDC's default."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        allowed = _CHOICES.get(name)
        if value is None or value == "":
            continue
        if allowed is not None and value not in allowed:
            raise ConfigError(f"{_option(name)} {value!r}: use {' or '.join(allowed)}")
        if name == "time_zone":
            try:
                known_time_zone(value)
            except ValueError as error:
                raise ConfigError(f"--time-zone {value!r}: {error}") from error
        if name in _SECRETS:
            value = _resolved(name, value)  # noqa: PLW2901
        found |= _MEANING[name](value) if name in _MEANING else {name: value}
    return found


with_codec_options = with_options("given", dict(_parameters()), _checked)
"""A command with every codec option; those that were given arrive as its ``given`` mapping."""


def _resolved(name: str, value: str) -> str:
    """A secret with its ``${env:NAME}`` and ``${file:path}`` put in."""
    found = Interpolated(value, base=Path.cwd())
    for problem in found.problems:
        raise ConfigError(f"{_option(name)}: {problem.reason}; {problem.remedy}")
    return found.data if isinstance(found.data, str) else ""


def codec_options(given: Given, base: CodecOptions | None = None) -> CodecOptions:
    """The codec options that were given, over those of a config."""
    options = base or CodecOptions()
    modes = {name: value for name, value in given.items() if name in _DEBEZIUM}
    known = {name: value for name, value in given.items() if name in CodecOptions.__dataclass_fields__}
    return replace(options, **known, debezium=replace(options.debezium, **modes))


def protocol_named(name: str | None) -> str:
    """The protocol a user means: TiCDC's names in any case.

    Raises:
        ConfigError: none is given, or no codec has this name.
    """
    if name is None:
        *first, last = CODECS
        raise ConfigError(
            f"give --protocol {', '.join(first)} or {last} (or --config): "
            "the bytes do not identify the protocol with certainty"
        )
    try:
        return known_protocol(name)
    except ConfigError as error:
        raise ConfigError(f"--protocol: {error.message}") from error


class CodecCommand(TyperCommand):
    """A command that takes booleans with a value as well: ``--content-compatible=true``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite booleans with a value to flags, then parse."""
        return super().parse_args(ctx, list(_as_flags(args)))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under the heading of each; plain help shows no panels of its own."""
        found: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            named = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                found.setdefault(getattr(parameter, "rich_help_panel", None) or named, []).append(record)
        for heading, records in found.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _as_flags(args: Sequence[str]) -> Iterator[str]:
    names = {_option(name) for name in _FLAGS}
    skip = False
    for index, arg in enumerate(args):
        if skip:
            skip = False
            continue
        name, equals, value = arg.partition("=")
        if name not in names:
            yield arg
            continue
        if not equals and index + 1 < len(args) and args[index + 1].lower() in _BOOLEANS:
            value, skip = args[index + 1], True
        if (equals or skip) and value.lower() not in _BOOLEANS:
            raise typer.BadParameter(f"{value!r} is neither true nor false", param_hint=name)
        yield name if _BOOLEANS.get(value.lower(), True) else f"--no{name[1:]}"
