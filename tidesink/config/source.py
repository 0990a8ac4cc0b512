"""Models of the config section ``source``: Kafka, topics, the registry, the database and codec options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from tidesink.codecs.base import CodecOptions, Options
from tidesink.codecs.compression import Compression
from tidesink.codecs.open import ALIASES, CODECS, protocol_named
from tidesink.codecs.options import (
    BinaryHandling,
    BinaryText,
    CanalJsonOptions,
    ChecksumMode,
    DebeziumModes,
    DebeziumOptions,
    DecimalFormat,
    DecimalHandling,
    FlatAvroOptions,
    HstoreHandling,
    IntervalHandling,
    LargeMessageOption,
    TimePrecision,
    UnsignedHandling,
)
from tidesink.config.fields import (
    MOST_BYTES,
    ByteSize,
    Count,
    Listed,
    Model,
    PemFile,
    PositiveDuration,
    Problem,
    RefusedSettingError,
    Texts,
    beside_config,
    known_database,
)
from tidesink.errors import ConfigError
from tidesink.kafka_client import (
    PATHS,
    TOKEN_CALLBACK,
    ClientSettings,
    _Translation,
    librdkafka_settings,
    property_problems,
)
from tidesink.schema_registry.base import SchemaRegistry, Stop
from tidesink.schema_registry.client import open_registry
from tidesink.schema_registry.naming import TopicRule
from tidesink.schema_registry.transport import Auth, BasicAuth, BearerAuth, OAuthClient, Timeouts, TlsOptions
from tidesink.typemap.table import DecimalMode, UnsignedMode

KafkaProperties = dict[str, SecretStr]

_SERVERS: Final = "bootstrap.servers"

_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# By prefix of Kafka client properties: the SASL mechanisms with which the properties have an effect.
_OF_MECHANISMS: Final[Mapping[str, tuple[str, ...]]] = {
    "sasl.username": _PASSWORD_MECHANISMS,
    "sasl.password": _PASSWORD_MECHANISMS,
    "sasl.oauthbearer.": ("OAUTHBEARER",),
    "enable.sasl.oauthbearer.": ("OAUTHBEARER",),
    TOKEN_CALLBACK: ("OAUTHBEARER",),
    "sasl.kerberos.": ("GSSAPI",),
}
_OIDC: Final = (
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
)
_UNSECURED: Final = "enable.sasl.oauthbearer.unsecure.jwt"
_JAAS: Final = "sasl.jaas.config"
_READABLE: Final = "give a readable PEM file, or for ssl.keystore.location a PKCS#12 file"
_CERTIFICATE: Final = frozenset({"ssl.certificate.location", "ssl.certificate.pem"})
_KEY: Final = frozenset({"ssl.key.location", "ssl.key.pem"})


def normalised_kafka(value: Any, info: ValidationInfo) -> Any:
    """Return Kafka client properties as text, with relative paths resolved against the config's folder."""
    if not isinstance(value, dict):
        return value
    base: Path = (info.context or {}).get("base") or Path()
    return {str(name): _text(str(name), part, base) for name, part in value.items()}


def _text(name: str, value: Any, base: Path) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value) if isinstance(value, int | str) else value
    if name in PATHS and isinstance(text, str):
        return str(base / Path(text).expanduser())
    return text


def confluent_properties(brokers: str, properties: Mapping[str, SecretStr]) -> ClientSettings:
    """Return settings of confluent-kafka for ``open_client``. They can be pickled.

    Raises:
        ConfigError: a property is not allowed.
    """
    return librdkafka_settings({_SERVERS: brokers, **_plain(properties)})


def _plain(properties: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in properties.items()}


def kafka_problems(properties: KafkaProperties, setting: str = "source.kafka") -> Iterator[Problem]:
    """Yield problems of Kafka client properties that are not allowed in the config."""
    if _SERVERS in properties:
        remedy = f"use {setting.rpartition('.')[0]}.brokers"
        yield Problem(f"{setting}.{_SERVERS}", "is not allowed as a client property", remedy)
    for name, reason, remedy in property_problems(_plain(properties)):
        yield Problem(f"{setting}.{name}", reason, remedy)


def security_problems(properties: KafkaProperties, setting: str) -> Iterator[Problem]:
    """Yield the missing SASL and TLS properties, and the ones without effect, as problems."""
    plain = _plain(properties)
    refused = {problem.name for problem in property_problems(plain)}
    # A property that is not allowed is already reported by kafka_problems.
    taken = {name: value for name, value in plain.items() if name not in refused}
    if _JAAS in refused:
        refused |= {"sasl.mechanism", "sasl.username", "sasl.password"}
    settings = _Translation(taken).settings
    security = str(settings.get("security.protocol", "PLAINTEXT"))
    sasl = {name for name in taken if name.startswith(("sasl.", "enable.sasl.")) or name == TOKEN_CALLBACK}
    tls = {name for name in taken if name.startswith(("ssl.", "enable.ssl."))}
    if security.startswith("SASL_"):
        yield from _login_problems(settings, refused, security, setting)
    elif sasl:
        yield _without_effect(setting, sasl, security, "SASL_SSL or SASL_PLAINTEXT")
    if tls and not security.endswith("SSL"):
        yield _without_effect(setting, tls, security, "SSL or SASL_SSL")
    if bool(_CERTIFICATE & settings.keys()) != bool(_KEY & settings.keys()):
        yield Problem(
            setting, "ssl.certificate.location and ssl.key.location are only used together", "set both"
        )


def _without_effect(setting: str, names: set[str], security: str, needed: str) -> Problem:
    reason = f"{', '.join(sorted(names))}: no effect with security.protocol {security}"
    return Problem(setting, reason, f"set security.protocol: {needed}, or remove them")


def _login_problems(
    settings: Mapping[str, Any], refused: set[str], security: str, setting: str
) -> Iterator[Problem]:
    """Yield the SASL properties that the mechanism lacks or does not use, as problems."""
    mechanism = settings.get("sasl.mechanism")
    is_oidc = settings.get("sasl.oauthbearer.method") == "oidc"
    needed: tuple[str, ...] = ("sasl.mechanism", "sasl.password", "sasl.username")
    if mechanism in ("OAUTHBEARER", "GSSAPI"):
        needed = _OIDC if mechanism == "OAUTHBEARER" and is_oidc else ()
    for name in needed:
        if name not in settings and name not in refused:
            yield Problem(f"{setting}.{name}", f"required with security.protocol {security}", "add it")
    has_tokens = is_oidc or settings.get(_UNSECURED) == "true" or TOKEN_CALLBACK in settings
    if mechanism == "OAUTHBEARER" and not has_tokens:
        yield Problem(
            f"{setting}.{TOKEN_CALLBACK}",
            "required with sasl.mechanism OAUTHBEARER",
            "set it to the name of a function that returns tokens, or set sasl.oauthbearer.method: oidc",
        )
    for prefix, mechanisms in _OF_MECHANISMS.items():
        idle = sorted(name for name in settings if name.startswith(prefix))
        if idle and mechanism is not None and mechanism not in mechanisms:
            yield Problem(
                setting,
                f"{', '.join(idle)}: no effect with sasl.mechanism {mechanism}",
                f"set sasl.mechanism: {' or '.join(mechanisms)}, or remove them",
            )


def file_problems(properties: KafkaProperties, setting: str) -> Iterator[Problem]:
    """Yield problems of Kafka client properties that name certificate or key files which do not exist."""
    refused = {problem.name for problem in property_problems(_plain(properties))}
    for name in sorted((PATHS & properties.keys()) - refused):
        if not Path(properties[name].get_secret_value()).exists():
            yield Problem(f"{setting}.{name}", "the file does not exist", _READABLE)


def _place(value: Any, info: ValidationInfo) -> Any:
    return beside_config(value, info) if isinstance(value, str) else value


# The whole URI is secret, because TiCDC accepts an S3 access key in its query.
ClaimCheckPlace = Annotated[SecretStr, BeforeValidator(_place, json_schema_input_type=str)]


def _protocol(name: str) -> str:
    try:
        return protocol_named(name)
    except ConfigError as error:
        raise ValueError(error.message) from error


ProtocolName = Annotated[
    str, AfterValidator(_protocol), WithJsonSchema({"enum": [*ALIASES], "type": "string"})
]
"""A protocol, given by any of its names in any case, and converted to its name in ``CODECS``."""


def _topic_rule(text: str) -> str:
    try:
        TopicRule.parse(text)
    except ConfigError as error:
        raise RefusedSettingError(error.message, "correct the rule") from error
    return text


TopicRuleText = Annotated[str, AfterValidator(_topic_rule)]


def _database_url(url: SecretStr) -> SecretStr:
    remedy = "give a URL such as mysql+pymysql://${env:TIDB_USER}:${env:TIDB_PASSWORD}@tidb:4000"
    known_database(url.get_secret_value(), remedy=remedy)
    return url


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]


def known_time_zone(name: str) -> str:
    """Return the name of a time zone. Raises ValueError if the time zone database does not contain it."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            "give a name of the IANA time zone database, such as UTC or Europe/Berlin"
        ) from error
    return name


def _broker(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("give host:port, several separated by commas")
    return address


Brokers = Annotated[tuple[Annotated[str, AfterValidator(_broker)], ...], Listed, Field(min_length=1)]


def http_url(url: str, example: str, *, secrets: str) -> SplitResult:
    """Return the parts of an HTTP URL.

    ``example``: a valid URL for the error message. ``secrets``: where to set the user name and password, for
    the error message.

    Raises:
        ValueError: the text is not an HTTP URL, or contains a user name or password.
    """
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        usable = None
    if not usable:
        raise ValueError(f"give a URL such as {example}")
    if parts.username or parts.password:
        raise ValueError(f"put {secrets}, not into the URL")
    return parts


def _registry_url(url: str) -> str:
    if url.startswith("memory:"):  # a registry in this process, for tests and notebooks
        return url
    http_url(url, "http://127.0.0.1:8081", secrets="user name and password under schema-registry.auth")
    return url.rstrip("/")


def registry_section(value: Any) -> Any:
    """Return the section ``schema-registry`` in one form, with ``urls``.

    In the config it may also be a plain URL, a list of URLs, or a section with ``url``.
    """
    if isinstance(value, str | list):
        return {"urls": value}
    if isinstance(value, dict) and "url" in value and "urls" not in value:
        return {"urls" if name == "url" else name: part for name, part in value.items()}
    return value


def _token_url(url: str) -> str:
    secrets = "the secret under client-secret"
    if http_url(url, "https://login.example.com/oauth2/token", secrets=secrets).query:
        raise ValueError(f"put {secrets}, not into the URL")
    return url


class RegistryOAuth(Model):
    """OAuth 2.0 client credentials. A token from ``token-url`` is used until it expires, and then renewed."""

    token_url: Annotated[str, AfterValidator(_token_url), Field(repr=False)]
    """The URL of the token endpoint."""
    client_id: str = Field(min_length=1)
    """The client's id."""
    client_secret: SecretStr
    """The client's secret."""
    scope: str = ""
    """The scope of the token; several scopes are separated by blanks."""
    ca: PemFile | None = None
    """PEM file with the CA certificates to trust for the token endpoint. Default: the system's."""

    def client(self, timeout: float) -> OAuthClient:
        """Return these settings as an ``OAuthClient``. Raises ConfigError if the CA file does not exist."""
        tls = TlsOptions(ca=Path(self.ca) if self.ca else None)
        secret = self.client_secret.get_secret_value()
        return OAuthClient(self.token_url, self.client_id, secret, scope=self.scope, tls=tls, timeout=timeout)


class SignIn(Model):
    """Credentials of an HTTP client: ``username`` and ``password``, or a bearer ``token``."""

    username: str | None = Field(default=None, min_length=1)
    """User name of basic authentication."""
    password: SecretStr | None = None
    """Password of basic authentication."""
    token: SecretStr | None = None
    """A bearer token, used in place of user name and password."""

    @model_validator(mode="after")
    def _one_way(self) -> SignIn:
        ways = {
            "token": self.token is not None,
            "username/password": self.username is not None or self.password is not None,
            "oauth": getattr(self, "oauth", None) is not None,
        }
        given = [name for name, there in ways.items() if there]
        if len(given) > 1:
            raise RefusedSettingError(f"{' and '.join(given)} exclude each other", "remove all but one")
        if given in ([], ["username/password"]) and (self.username is None or self.password is None):
            oauth = ", token, or oauth" if "oauth" in type(self).model_fields else ", or token"
            raise RefusedSettingError("incomplete", f"set username and password{oauth}")
        return self

    def signing(self, timeout: float = 10.0) -> Auth:  # noqa: ARG002  # RegistryAuth needs it
        """Return the authentication of HTTP requests. ``timeout``: limit for a token request, in seconds."""
        if self.token is not None:
            return BearerAuth(self.token.get_secret_value())
        return BasicAuth(self.username or "", self.password.get_secret_value() if self.password else "")


class RegistryAuth(SignIn):
    """Credentials for the registry: ``username`` and ``password`` (Confluent Cloud: API key and secret), a
    bearer ``token``, or ``oauth``."""

    oauth: RegistryOAuth | None = None
    """OAuth 2.0 client credentials, used in place of password and token."""

    def signing(self, timeout: float = 10.0) -> Auth:
        """Return the authentication of registry requests.

        ``timeout``: limit for a token request, in seconds.
        """
        return self.oauth.client(timeout) if self.oauth is not None else super().signing()


class RegistryTls(Model):
    """TLS settings for https URLs. All files are PEM files."""

    ca: PemFile | None = None
    """PEM file with the CA certificates to trust. Default: the system's."""
    certificate: PemFile | None = None
    """PEM file with the client's certificate."""
    key: PemFile | None = None
    """PEM file with the client's private key."""
    verify: bool = True
    """`false` accepts any server certificate. Use it for experiments only."""

    def options(self) -> TlsOptions:
        """Return these settings as ``TlsOptions``. Raises ConfigError if a file does not exist."""
        ca, certificate, key = (
            Path(name) if name else None for name in (self.ca, self.certificate, self.key)
        )
        return TlsOptions(ca=ca, client_cert=certificate, client_key=key, verify=self.verify)


class RegistrySettings(Model):
    """The schema registry that the producer writes to."""

    urls: Annotated[
        tuple[Annotated[str, AfterValidator(_registry_url)], ...], Listed, Field(min_length=1, repr=False)
    ]
    """One URL or several URLs, which are tried in turn. `url` is another name of this setting."""
    auth: RegistryAuth | None = None
    """Credentials for the registry."""
    tls: RegistryTls | None = None
    """TLS settings for https URLs."""
    timeout: PositiveDuration = 10.0
    """Time limit for a response of the registry."""

    def open(self, stop: Stop | None = None) -> SchemaRegistry:
        """Open a client of this registry.

        ``stop``: ends the client's retries early, as in ``schema_registry.open_registry``.

        Raises:
            ConfigError: a TLS file does not exist.
        """
        auth = self.auth.signing(self.timeout) if self.auth else None
        tls = self.tls or RegistryTls()
        timeouts = Timeouts(read=self.timeout)
        return open_registry(self.urls, auth=auth, tls=tls.options(), timeouts=timeouts, stop=stop)


UntypedColumns = Literal["refuse", "text"]


class DebeziumSettings(Model):
    """Options of a Debezium connector that its records do not show. Names are Debezium's, with ``-``."""

    binary_handling_mode: BinaryHandling = DebeziumModes.binary_handling_mode
    """Text form of columns that a definition shows to be binary: `bytes`,
    `base64`, `base64-url-safe` or `hex`."""
    unavailable_value_placeholder: Annotated[str, Field(min_length=1)] | None = None
    """The connector's `unavailable.value.placeholder`, which replaces a value that the connector did not
    receive. Default: Debezium's own, `__debezium_unavailable_value`. TiCDC's messages have every value and no
    placeholder."""
    decimal_handling_mode: DecimalHandling = DebeziumModes.decimal_handling_mode
    """Form of decimals: `precise`, `string` or `double`. This setting and the following ones up to
    `decimal-format` only apply to records without a schema."""
    bigint_unsigned_handling_mode: UnsignedHandling = DebeziumModes.bigint_unsigned_handling_mode
    """Form of BIGINT UNSIGNED: `long`, `precise` or `string`."""
    time_precision_mode: TimePrecision = DebeziumModes.time_precision_mode
    """Form of times: `adaptive` (PostgreSQL), `adaptive_time_microseconds` (MySQL), `connect`,
    `isostring`, `microseconds`, `nanoseconds` or `structured`. Rows of a snapshot are written the same
    way."""
    interval_handling_mode: IntervalHandling = DebeziumModes.interval_handling_mode
    """Form of PostgreSQL's intervals: `numeric` or `string`."""
    hstore_handling_mode: HstoreHandling = DebeziumModes.hstore_handling_mode
    """Form of PostgreSQL's hstore: `json` or `map`."""
    decimal_format: DecimalFormat = DebeziumModes.decimal_format
    """The converter's `decimal.format`: `base64` or `numeric`."""
    unwrapped: bool = DebeziumOptions.debezium_unwrapped
    """The connector uses the transform ExtractNewRecordState, which turns envelopes into rows; a record with
    a null value is then a delete. This is detected if a schema or an added field such as `__op` shows it.
    Also set it for a compacted topic of envelopes, in which a null value may be all that remains of a delete.
    debezium-json only."""
    schema_change_topic: Annotated[str, Field(min_length=1)] | None = None
    """The topic to which a connector for MySQL or MariaDB writes DDL (`include.schema.changes`, which is on
    by default). Its name is the connector's `topic.prefix`. Workers read it to find TRUNCATE, DROP and other
    DDL that changes rows (`docs/schema-changes.md`). Connectors for PostgreSQL have no such topic."""
    offsets_topic: Annotated[str, Field(min_length=1)] | None = None
    """The topic in which Kafka Connect stores the connector's offsets: `offset.storage.topic` of Connect's
    workers, or `offsets.storage.topic` of the connector. Required by `cuts` (`docs/cuts.md`)."""
    connector_name: Annotated[str, Field(min_length=1)] | None = None
    """The connector's name in Kafka Connect. Required with `offsets-topic`.

    All tables must come from this connector.
    """
    untyped_columns: UntypedColumns = "refuse"
    """Policy for columns without a known type: the records have no schemas, and neither a `definition` nor
    `source.database` shows the type. `refuse`: the table waits, with an error. `text`: the column is stored
    as the text in the JSON, where a DECIMAL may be base64 and a DATETIME a number. debezium-json only
    (`docs/codecs.md`)."""

    def modes(self, time_zone: str) -> DebeziumModes:
        """Return these settings as the codec's ``DebeziumModes``."""
        others = (
            *("unwrapped", "schema_change_topic", "offsets_topic", "connector_name"),
            "untyped_columns",
        )
        given = {name: getattr(self, name) for name in type(self).model_fields if name not in others}
        return DebeziumModes(**given, time_zone=time_zone, commit_positions=self.offsets_topic is not None)


class DatabaseSettings(Model):
    """The source database. Snapshots, and other rows that the topics do not contain, are read from it."""

    url: DatabaseUrl
    """The database's SQLAlchemy URL, such as `mysql+pymysql://reader:…@tidb:4000` or
    `postgresql+psycopg://reader:…@host/database`. The user needs SELECT on the tables. The URL is never
    shown."""
    connections: Count = Field(default=2, ge=1, le=64)
    """Number of key ranges of a table that a snapshot reads at once, each with its own connection."""
    chunk_rows: Count = Field(default=100_000, ge=1, le=10_000_000)
    """Number of rows in one key range. A range has fewer rows if `rows-per-second` allows fewer in 5
    seconds."""
    rows_per_second: Count | None = Field(default=None, ge=1)
    """Maximum number of rows of a table to read per second. Default: no limit."""
    replica: bool = False
    """Allow a database that is a replica. Only set this if the connector itself reads from this replica:
    another replica may not have all changes that were sent to Kafka. Otherwise a replica is an error."""

    @property
    def range_rows_per_second(self) -> float | None:
        """Maximum number of rows per second for one of the ``connections``, or None without a limit."""
        return None if self.rows_per_second is None else self.rows_per_second / self.connections


def _database_section(value: Any) -> Any:
    """Return the section ``database``. In the config it may also be a plain URL."""
    return {"url": value} if isinstance(value, str) else value


class SourceSettings(Model):
    """The source of the changes: Kafka, topics, and the producer's codec options under TiCDC's names."""

    brokers: Brokers
    """Kafka bootstrap servers, `host:port`, as a list or separated by commas."""
    protocol: ProtocolName
    """The protocol of the topics, in upper or lower case. TiCDC writes `flat-avro` (or `avro`) and
    `canal-json`. Debezium connectors and the new TiCDC write `debezium-avro` and `debezium-json` (TiCDC's
    name: `debezium`)."""
    topics: Annotated[tuple[TopicRuleText, ...], Listed, Field(min_length=1)]
    """Topic rules as in the changefeed's dispatchers (`{schema}_{table}`), or names of topics. A rule for
    flat-avro must contain `{schema}` and `{table}`. A flat-avro topic that is given by name has exactly one
    table, which must be listed under `tables`."""
    schema_registry: Annotated[
        RegistrySettings | None,
        BeforeValidator(registry_section, json_schema_input_type=Texts | RegistrySettings | None),
    ] = None
    """The schema registry that the producer writes to, as a URL or a section. Required by flat-avro and
    debezium-avro; the other protocols do not use it."""
    enable_tidb_extension: bool = CodecOptions.enable_tidb_extension
    """TiCDC: the messages carry `_tidb` fields."""
    avro_decimal_handling_mode: DecimalMode = FlatAvroOptions.avro_decimal_handling_mode
    """TiCDC: how decimals are written, `precise` or `string`. flat-avro only."""
    avro_bigint_unsigned_handling_mode: UnsignedMode = FlatAvroOptions.avro_bigint_unsigned_handling_mode
    """TiCDC: how BIGINT UNSIGNED is written, `long` or `string`. flat-avro only."""
    avro_enable_watermark: bool = FlatAvroOptions.avro_enable_watermark
    """TiCDC: flat-avro topics carry DDL and watermark events. Requires `enable-tidb-extension`."""
    avro_include_before_value: bool = FlatAvroOptions.avro_include_before_value
    """New TiCDC: flat-avro values also carry the before image of the row."""
    content_compatible: bool = CanalJsonOptions.content_compatible
    """TiCDC: full column types in `mysqlType`. canal-json only."""
    only_output_updated_columns: bool = CanalJsonOptions.only_output_updated_columns
    """TiCDC: in updates, the member `old` only has the changed columns. canal-json only."""
    delete_only_output_handle_key_columns: bool = CanalJsonOptions.delete_only_output_handle_key_columns
    """TiCDC: deletes carry only the key. canal-json only."""
    binary_text: BinaryText = CanalJsonOptions.binary_text
    """Text encoding of the bytes of BINARY, VARBINARY and BLOB columns. TiCDC documents
    ISO-8859-1, one character per byte. According to reports, some versions (5.3, 7.5.4) write UTF-8; use
    `utf-8` for their topics. `docs/codecs.md` shows how to find out. canal-json only."""
    output_row_key: bool = CanalJsonOptions.output_row_key
    """New TiCDC: rows carry TiDB's row key, which identifies the rows of tables without a key
    (`docs/tables-without-a-key.md`). Requires `enable-tidb-extension`. canal-json only."""
    output_raw_change_event: bool = False
    """TiCDC: an update of a key is not split into a delete and an insert. Not allowed for flat-avro without
    `avro-include-before-value`, because the old key would be lost. Also not allowed with `sequence_by:
    kafka`, because rows would be lost if a transaction assigns the old key of a row to another row."""
    large_message_handle_option: LargeMessageOption = CanalJsonOptions.large_message_handle_option
    """TiCDC: how rows that are too large for Kafka are sent: `none`, `claim-check` or `handle-key-only`.
    canal-json only."""
    large_message_handle_compression: Compression = CanalJsonOptions.large_message_handle_compression
    """TiCDC: compression of every message: `none`, `snappy` or `lz4`. Required to read compressed canal-json.
    canal-json and debezium-json only."""
    claim_check_storage_uri: ClaimCheckPlace | None = None
    """TiCDC: where rows are stored that are too large for Kafka: a directory, or a URL that fsspec supports
    (`s3://bucket/path`). Files outside of it are never opened. The value is never shown. canal-json only."""
    claim_check_raw_value: bool = CanalJsonOptions.claim_check_raw_value
    """TiCDC: claim-check files hold only the message's value. Detected from the files. canal-json only."""
    database: Annotated[
        DatabaseSettings | None,
        BeforeValidator(_database_section, json_schema_input_type=str | DatabaseSettings | None),
    ] = None
    """The database that the changes come from, as a SQLAlchemy URL or a section. It is used for snapshots
    (`docs/snapshots.md`), for large rows of which TiCDC only sends the handle key (read as of their commit),
    and for column types that the records do not have (`docs/codecs.md`)."""
    upstream_url: DatabaseUrl | None = None
    """The SQLAlchemy URL of a database that is only used for rows of which TiCDC sends only the handle key.
    Without this setting and `database`, such rows are bad records. The URL is never shown. canal-json
    only."""
    max_decompressed_bytes: ByteSize = Field(
        default=CanalJsonOptions.max_decompressed_bytes, ge=1, le=MOST_BYTES
    )
    """Size limit of one message after decompression. canal-json and debezium-json only."""
    time_zone: Annotated[str, AfterValidator(known_time_zone)] = CodecOptions.time_zone
    """The changefeed's time zone, in which TIMESTAMP values are written without a zone."""
    checksum: ChecksumMode = FlatAvroOptions.checksum
    """Policy for a row that does not match its TiCDC checksum: `off` (checksums are not checked), `warn` (the
    row is applied, counted and logged), `reject` (the record is bad). Requires `integrity-check-level =
    "correctness"` in the changefeed. flat-avro only."""
    debezium: DebeziumSettings = DebeziumSettings()
    """A Debezium connector's own options. debezium-avro and debezium-json only."""
    kafka: Annotated[
        KafkaProperties,
        BeforeValidator(normalised_kafka, json_schema_input_type=dict[str, SecretStr | int | bool]),
    ] = Field(default_factory=dict)
    """Kafka client properties. The list below has the allowed ones."""

    @cached_property
    def rules(self) -> tuple[TopicRule, ...]:
        """The topic rules and topic names of ``topics``, in the config's order."""
        return tuple(TopicRule.parse(text) for text in self.topics)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers separated by commas, as Kafka clients expect them."""
        return ",".join(self.brokers)

    def open_registry(self, stop: Stop | None = None) -> SchemaRegistry:
        """Open a client of the schema registry. The caller closes it.

        ``stop``: ends the client's retries early, as in ``schema_registry.open_registry``.

        Raises:
            ConfigError: no registry is configured, or a TLS file does not exist.
        """
        if self.schema_registry is None:
            raise ConfigError(f"source.schema-registry is not set, but {self.protocol} needs it.")
        return self.schema_registry.open(stop)

    def codec_options(self) -> CodecOptions:
        """Return the producer's codec options, for ``open_codec``."""
        return self.options_of(CODECS[self.protocol].options)

    def options_of(self, codec: type[Options]) -> Options:
        """Return these settings as the options of a codec, which may be another one than the protocol's."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        given |= {name: value.get_secret_value() if value else "" for name, value in self._places.items()}
        given["debezium"] = self.debezium.modes(self.time_zone)
        given["debezium_unwrapped"] = self.debezium.unwrapped
        return codec().updated(given)

    @property
    def sends_row_keys(self) -> bool:
        """True if rows of canal-json contain TiDB's row key, which is part of the TiDB extension."""
        return self.options_of(CanalJsonOptions).sends_row_keys

    @property
    def lacks_commit_ts(self) -> bool:
        """True if the topics' events have no commit_ts, which TiCDC only sends with enable-tidb-extension."""
        return "enable_tidb_extension" in CODECS[self.protocol].reads and not self.enable_tidb_extension

    @property
    def has_commit_positions(self) -> bool:
        """True if the events' commit_ts is a position in the log of a Debezium connector's database."""
        return self.debezium.offsets_topic is not None

    @property
    def opens_up_to(self) -> int | None:
        """Maximum size of a decompressed message in bytes; None if the changefeed does not compress."""
        return None if self.large_message_handle_compression == "none" else self.max_decompressed_bytes

    @property
    def _places(self) -> dict[str, SecretStr | None]:
        upstream = self.upstream_url
        if upstream is None and self.database is not None and "upstream_url" in CODECS[self.protocol].reads:
            upstream = self.database.url
        return {"claim_check_storage_uri": self.claim_check_storage_uri, "upstream_url": upstream}

    def confluent_properties(self) -> ClientSettings:
        """Return Kafka client properties for ``open_client``, with secrets in plain text. Never log them."""
        return confluent_properties(self.bootstrap_servers, self.kafka)
