"""Models of the config section ``target``: one model for each type of target, chosen by ``type``.

The types are Delta, Iceberg (in any catalog that Spark supports), SQL databases, Kafka topics and HTTP
endpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    ValidationInfo,
    model_validator,
)

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.compression import Compression
from tidesink.codecs.open import CODECS, without_effect
from tidesink.codecs.options import CanalJsonOptions, DebeziumOptions, FlatAvroOptions
from tidesink.config.fields import (
    MOST_BYTES,
    ByteSize,
    Count,
    LocalPath,
    Model,
    PositiveDuration,
    RefusedSettingError,
    Texts,
    beside_config,
)
from tidesink.config.source import (
    Brokers,
    KafkaProperties,
    ProtocolName,
    RegistrySettings,
    RegistryTls,
    SignIn,
    TopicRuleText,
    confluent_properties,
    http_url,
    known_time_zone,
    normalised_kafka,
    registry_section,
)
from tidesink.kafka_client import ClientSettings
from tidesink.schema_registry.naming import TopicRule
from tidesink.schema_registry.transport import Auth, NoAuth, TlsOptions
from tidesink.typemap.render_sql import KEY_LENGTH
from tidesink.typemap.table import DecimalMode, UnsignedMode

TargetFeature = Literal[
    "rows", "soft-deletes", "source-order", "append", "history", "shards", "drop", "rename"
]
"""A capability that only some types of targets have.

``rows``: the target stores rows; other targets send each change as a message. ``soft-deletes``: rows can be
marked as deleted. ``source-order``: each row is stored with the position of its change, so that an older
change never overwrites a newer one. ``append``, ``history``: these modes are supported. ``shards``: several
source tables can be written to one target table, each with its own ledger (record of progress). ``drop``,
``rename``: columns can be dropped and renamed.
"""
ALL_FEATURES: Final[frozenset[TargetFeature]] = frozenset(get_args(TargetFeature))


class TargetModel(Model):
    """Base of the settings of all types of targets."""

    features: ClassVar[frozenset[TargetFeature]] = ALL_FEATURES


def _both_placeholders(template: str, example: str) -> None:
    if "{schema}" not in template or "{table}" not in template:
        shared = "place" if "/" in example else "name"
        raise ValueError(
            f"use both placeholders, as in {example}; otherwise two tables could share one {shared}"
        )


def _no_other_placeholder(template: str) -> None:
    rest = template.replace("{schema}", "").replace("{table}", "")
    if "{" in rest or "}" in rest:
        raise ValueError("it has an unknown placeholder; use only {schema} and {table}")


def _names_tables(template: str) -> str:
    _both_placeholders(template, "{schema}.{table}")
    levels = template.replace("{schema}", "s").replace("{table}", "t").split(".")
    if not all(level.isidentifier() for level in levels) or len(levels) < 2:
        raise ValueError(
            "give a namespace and the table's name, separated by dots, as in lake.{schema}_{table}; names "
            "have letters, digits, _ and the placeholders {schema} and {table}"
        )
    return template


CatalogName = Annotated[str, AfterValidator(_names_tables)]
"""A template for names of tables in a catalog, with the placeholders {schema} and {table}."""


def _no_session_catalog(name: str) -> str:
    if name.lower() == "spark_catalog":
        raise ValueError("spark_catalog is Delta's catalog; use another name")
    return name


def _with_paths(properties: Any, info: ValidationInfo) -> Any:
    """Return a catalog's properties as text, with ``warehouse`` relative to the config's folder."""
    texts = _texts(properties)
    if not isinstance(texts, dict):
        return texts
    warehouse = texts.get("warehouse")
    if isinstance(warehouse, str) and type_of_url(warehouse) not in (None, "http"):
        _is_path(warehouse)
    if isinstance(warehouse, str) and warehouse.startswith(("./", "../", "~")):
        texts["warehouse"] = beside_config(warehouse, info)
    return texts


def _texts(properties: Any) -> Any:
    if not isinstance(properties, dict):
        return properties
    return {name: _text(value) for name, value in properties.items()}


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class LakeSettings(TargetModel):
    """Settings of lakes, Delta and Iceberg."""

    table_properties: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default_factory=dict)
    """Table properties for new tables, under the names of the table format. They are added to tidesink's own
    properties, and override those of the same name. Existing tables keep their properties."""
    single_writer: bool = False
    """Only for a lake on S3 where other writers cannot be excluded. With `true` you promise that only one
    worker, and no other program, ever writes to these tables. Two workers would overwrite each other's
    commits without noticing."""


# Schemes of locations in S3 buckets.
S3_SCHEMES: Final = ("s3", "s3a", "s3n")


def scheme_of(location: str) -> str:
    """Return the scheme of a location, in lower case; empty for a folder."""
    return urlsplit(location).scheme if "://" in location else ""


class IcebergSettings(LakeSettings):
    """Iceberg tables in one catalog. The values of ``catalog-properties`` are secret."""

    type: Literal["iceberg"]
    """`iceberg`: Iceberg tables in a catalog."""
    catalog: Annotated[
        str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_no_session_catalog)
    ] = "iceberg"
    """The catalog's name in Spark."""
    catalog_properties: Annotated[dict[str, SecretStr], BeforeValidator(_with_paths)] = Field(
        default_factory=dict
    )
    """The catalog's properties, under Iceberg's names: `type` (`rest`, `hive`, `hadoop`, `glue`, `jdbc`,
    `nessie`) or `catalog-impl`, `uri`, `warehouse`, …. Their values are never shown. Without properties, the
    catalog must be defined in `spark.conf` under `spark.sql.catalog.NAME`."""
    table: CatalogName = "{schema}.{table}"
    """The namespace and name of a table in the catalog. Must contain `{schema}` and `{table}`."""

    def catalog_values(self) -> dict[str, str]:
        """Return ``catalog-properties`` with their secret values in plain text. Never log the result."""
        return {name: value.get_secret_value() for name, value in self.catalog_properties.items()}

    def excludes_writers(self, conf: Mapping[str, str]) -> bool:
        """Return True if the catalog rejects a commit when another process has committed in between.

        A catalog of ``type: hadoop`` commits by renaming a file. On S3 this replaces the file of another
        commit, unless a lock is configured (Iceberg's ``HadoopTableOperations``, 1.10.1). ``conf``: Spark's
        settings, which may configure the catalog.
        """
        prefix = f"spark.sql.catalog.{self.catalog}."
        under = {name.removeprefix(prefix): value for name, value in conf.items() if name.startswith(prefix)}
        values = {**under, **self.catalog_values()}
        renames = values.get("type") == "hadoop" or values.get("catalog-impl", "").endswith(".HadoopCatalog")
        lock = values.get("lock-impl", "").rpartition(".")[2]
        locked = lock not in ("", "InMemoryLockManager")
        return locked or not renames or scheme_of(values.get("warehouse", "")) not in S3_SCHEMES


TlsMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]


def _database_url(scheme: str, url: str, *, needs_database: bool) -> str:
    parts = urlsplit(url)
    example = f"{scheme}://db.example.com:{5432 if scheme == 'postgresql' else 3306}/shop"
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            "remove user, password and options from the URL, and set them under user, password and tls"
        )
    try:
        fits = parts.scheme == scheme and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if not fits or "/" in parts.path.strip("/") or (needs_database and not parts.path.strip("/")):
        other = type_of_url(url)
        hint = f", or set target.type: {other}" if other not in (None, _TYPES_BY_SCHEME[scheme]) else ""
        raise ValueError(f"give a URL such as {example}{hint}")
    return url.rstrip("/")


def _names_a_table(template: str) -> str:
    _both_placeholders(template, "{schema}.{table}")
    _no_other_placeholder(template)
    if template.count(".") != 1 or not all(template.split(".")):
        raise ValueError(
            "give two names with a dot between them, as in {schema}.{table} or lake.{schema}_{table}"
        )
    return template


def _names_a_view(template: str) -> str:
    rest = template.replace("{table}", "")
    if "{table}" not in template or not rest or "{" in rest or "}" in rest or "." in rest:
        raise ValueError("give a name that contains {table} and other characters, as in {table}_live")
    return template


SqlTemplate = Annotated[str, AfterValidator(_names_a_table)]


class SqlTls(Model):
    """TLS settings for the connection to a database. The modes have Postgres's names."""

    mode: TlsMode = "prefer"
    """`disable`: no TLS. `prefer`: TLS if the server supports it. `require`: TLS, without checking the
    server's certificate. `verify-ca`: the certificate must be signed by `ca`. `verify-full`: the certificate
    must also name the host."""
    ca: LocalPath | None = None
    """A PEM file with the CA certificates that sign the server's certificate."""
    certificate: LocalPath | None = None
    """A PEM file with the worker's own certificate."""
    key: LocalPath | None = None
    """A PEM file with the private key of the worker's certificate."""


class SqlSettings(TargetModel):
    """Settings that all targets in SQL databases have."""

    default_port: ClassVar[int]

    url: str = Field(repr=False)
    user: str
    """The database user of the worker."""
    password: SecretStr | None = None
    """The user's password, as `${env:NAME}` or `${file:path}`."""
    table: SqlTemplate = "{schema}.{table}"
    view: Annotated[str, AfterValidator(_names_a_view)] | None = None
    """The name of a view that is created for each table, such as `{table}_live`; must contain `{table}`. The
    view shows the rows that are not deleted, without tidesink's own columns. tidesink updates the view when
    the table's columns change."""
    tls: SqlTls = Field(default_factory=SqlTls)
    """TLS settings for the connection to the database."""


class PostgresSettings(SqlSettings):
    """Tables in a Postgres database."""

    default_port: ClassVar[int] = 5432

    type: Literal["postgres"]
    """`postgres`: tables in a Postgres database."""
    url: Annotated[
        str, AfterValidator(partial(_database_url, "postgresql", needs_database=True)), Field(repr=False)
    ]
    """The database's URL, such as `postgresql://host:5432/database`, without user and password."""
    table: SqlTemplate = "{schema}.{table}"
    """The schema and name of a table in the database. Must contain `{schema}` and `{table}`. Missing schemas
    are created."""


class MysqlSettings(SqlSettings):
    """Tables in a MySQL or MariaDB server."""

    default_port: ClassVar[int] = 3306

    type: Literal["mysql"]
    """`mysql`: tables in a MySQL or MariaDB server."""
    url: Annotated[
        str, AfterValidator(partial(_database_url, "mysql", needs_database=False)), Field(repr=False)
    ]
    """The server's URL, such as `mysql://host:3306`, without user and password."""
    table: SqlTemplate = "{schema}.{table}"
    """The database and name of a table on the server. Must contain `{schema}` and `{table}`. Missing
    databases are created."""
    key_length: Count = Field(default=KEY_LENGTH, ge=1, le=3072)
    """The length of text columns (in characters) and binary columns (in bytes) of a key in new tables, if
    neither the topic nor a definition has the length, as in flat-avro. A longer value stops its table. The
    columns of a key may have 3072 bytes together, and text has four bytes per character."""


def _written(protocol: str) -> str:
    if CODECS[protocol].writes is None:
        raise ValueError(f"{protocol} can be read, but not written")
    return protocol


class KafkaSettings(TargetModel):
    """Kafka topics to which the changes of tables are sent as messages, at least once."""

    features = frozenset()
    type: Literal["kafka"]
    """`kafka`: messages in Kafka topics."""
    brokers: Brokers
    """Kafka bootstrap servers, `host:port`, as a list or separated by commas."""
    topic: TopicRuleText = "{schema}_{table}"
    """The rule for a table's topic, as in TiCDC's dispatchers: `[prefix]{schema}[middle]{table}[suffix]`. The
    Avro protocols require both placeholders. The JSON protocols can also write all tables to one topic."""
    protocol: Annotated[ProtocolName, AfterValidator(_written)]
    """The protocol of the messages, in the form that TiCDC writes: `flat-avro` (or `avro`), `canal-json`,
    `debezium-json` (or `debezium`) or `debezium-avro`."""
    schema_registry: Annotated[
        RegistrySettings | None,
        BeforeValidator(registry_section, json_schema_input_type=Texts | RegistrySettings | None),
    ] = None
    """The schema registry in which schemas are registered, as a URL or a section. Required by the Avro
    protocols."""
    auto_create_topic: bool = True
    """If true, topics that do not exist are created."""
    partition_num: Count = Field(default=3, ge=1, le=10_000)
    """Number of partitions of a created topic."""
    replication_factor: Count = Field(default=1, ge=1, le=1000)
    """Replication factor of a created topic."""
    enable_tidb_extension: bool = CodecOptions.enable_tidb_extension
    """TiCDC: messages have `_tidb` fields. Requires a source whose records have a commit_ts."""
    avro_decimal_handling_mode: DecimalMode = FlatAvroOptions.avro_decimal_handling_mode
    """TiCDC: how decimals are written, `precise` or `string`. Avro only."""
    avro_bigint_unsigned_handling_mode: UnsignedMode = FlatAvroOptions.avro_bigint_unsigned_handling_mode
    """TiCDC: how BIGINT UNSIGNED is written, `long` or `string`. Avro only."""
    content_compatible: bool = CanalJsonOptions.content_compatible
    """TiCDC: full column types in `mysqlType`. canal-json only."""
    large_message_handle_compression: Compression = CanalJsonOptions.large_message_handle_compression
    """TiCDC: how every message is compressed: `none`, `snappy` or `lz4`. canal-json and
    debezium-json only."""
    max_message_bytes: ByteSize = Field(default=CodecOptions.max_message_bytes, ge=1, le=MOST_BYTES)
    """Maximum size of a message. The topic must allow messages of this size."""
    namespace: str = Field(default=FlatAvroOptions.namespace, min_length=1)
    """The first part of the Avro schemas' namespace: the changefeed's namespace or keyspace. flat-avro
    only."""
    time_zone: Annotated[str, AfterValidator(known_time_zone)] = CodecOptions.time_zone
    """The time zone in which TIMESTAMP values are written."""
    cluster_id: str = Field(default=DebeziumOptions.cluster_id, min_length=1)
    """TiCDC: the name of the source in Debezium's messages. Debezium only."""
    debezium_disable_schema: bool = DebeziumOptions.debezium_disable_schema
    """TiCDC: messages do not contain their schema. debezium-json only."""
    kafka: Annotated[
        KafkaProperties,
        BeforeValidator(normalised_kafka, json_schema_input_type=dict[str, SecretStr | int | bool]),
    ] = Field(default_factory=dict)
    """Kafka client properties. The list below has the allowed ones."""

    @model_validator(mode="after")
    def _fits(self) -> KafkaSettings:
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        written = CODECS[self.protocol]
        if written.registry and self.schema_registry is None:
            yield f"{self.protocol} needs schema-registry, such as http://127.0.0.1:8081"
        if written.registry and not self.rule.names_tables:
            yield f"topic must contain {{schema}} and {{table}} for {self.protocol}: use {{schema}}_{{table}}"
        foreign = without_effect(self.protocol, "writes")
        for name in type(self).model_fields:
            if name in foreign and name in self.model_fields_set:
                yield f"{name.replace('_', '-')} has no effect with {self.protocol}: remove it"

    @property
    def rule(self) -> TopicRule:
        """The rule that names a table's topic."""
        return TopicRule.parse(self.topic)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers separated by commas, as Kafka clients expect them."""
        return ",".join(self.brokers)

    def confluent_properties(self) -> ClientSettings:
        """Return Kafka client properties for ``open_client``, with secrets in plain text. Never log them."""
        return confluent_properties(self.bootstrap_servers, self.kafka)

    def codec_options(self) -> CodecOptions:
        """Return the codec options with which messages are encoded."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return CODECS[self.protocol].options().updated(given)


def _endpoint(url: str) -> str:
    secrets = "user name and password under target.auth"
    parts = http_url(url, "https://api.example.com/changes/{schema}/{table}", secrets=secrets)
    if parts.fragment:
        raise ValueError("the URL must not have a fragment: remove the # and the text after it")
    _no_other_placeholder(url)
    if "{" in (parts.hostname or ""):
        raise ValueError("put placeholders into the path or the query, not into the host name")
    return url


class HttpSettings(TargetModel):
    """An HTTP endpoint to which the changes of tables are sent as JSON, at least once."""

    features = frozenset()
    type: Literal["http"]
    """`http`: HTTP requests with rows as JSON."""
    url: Annotated[str, AfterValidator(_endpoint)] = Field(repr=False)
    """The URL to which rows are sent. It may contain `{schema}` and `{table}`."""
    method: Literal["POST", "PUT"] = "POST"
    """The HTTP method, `POST` or `PUT`."""
    format: Literal["json-lines", "array"] = "json-lines"
    """The form of a request's body: `json-lines` (one JSON object per line) or `array` (one JSON array)."""
    batch_rows: Count = Field(default=500, ge=1, le=1_000_000)
    """Maximum number of rows in one request."""
    parallel_requests: Count = Field(default=2, ge=1, le=1000)
    """Maximum number of requests of one table that run at once. The changes of a key stay in order."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """HTTP headers of every request. Their values are never shown."""
    auth: SignIn | None = None
    """Credentials for the HTTP endpoint."""
    timeout: PositiveDuration = 30.0
    """Time limit for opening a connection, and for a response."""
    attempts: Count = Field(default=5, ge=1, le=100)
    """Number of attempts of one request. After the last one, the whole batch is retried, for as long as
    `retry.for` allows."""
    longest_wait: PositiveDuration = 60.0
    """Longest wait between two attempts of a request. If the endpoint asks for more (`Retry-After`), the
    whole batch is retried later (`retry.for`)."""
    tls: RegistryTls | None = None
    """TLS settings for https URLs."""

    def header_values(self) -> dict[str, str]:
        """Return ``headers`` with their secret values in plain text. Never log the result."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}

    def signing(self) -> Auth:
        """Return the authentication of HTTP requests."""
        return NoAuth() if self.auth is None else self.auth.signing()

    def tls_options(self) -> TlsOptions:
        """Return the TLS settings as ``TlsOptions``. Raises ConfigError if a file does not exist."""
        return (self.tls or RegistryTls()).options()


DEFAULT_TYPE: Final = "delta"


# Type of the target by the scheme of its URL.
_TYPES_BY_SCHEME: Final[Mapping[str, str]] = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "kafka": "kafka",
    "http": "http",
    "https": "http",
}


def type_of_url(url: str) -> str | None:
    """Return the type of target that a URL's scheme belongs to; None for a folder or a file system's URL."""
    return _TYPES_BY_SCHEME.get(scheme_of(url))


def _is_path(location: str) -> str:
    target_type = type_of_url(location)
    if target_type == "http":
        raise RefusedSettingError(
            "is an HTTP URL, not a file system",
            "give a folder, or the URL of an object store (s3a://, gs://, abfss://); to send rows to an HTTP "
            "endpoint, set type: http and target.url",
        )
    if target_type is not None:
        where = "brokers" if target_type == "kafka" else "url"
        raise RefusedSettingError(
            "is a URL, not the path of a lake", f"set type: {target_type}, and set the URL as target.{where}"
        )
    return location


def _tells_tables_apart(template: str) -> str:
    _both_placeholders(template, "{schema}/{table}")
    _no_other_placeholder(template)
    return template


TableTemplate = Annotated[str, AfterValidator(_tells_tables_apart)]


# Delta's log stores that do not detect a concurrent commit of another process on S3.
_SHARED_STORES: Final = frozenset(
    f"{name}LogStore" for name in ("Azure", "GCS", "HDFS", "HadoopFileSystem", "Local", "S3SingleDriver")
)


class DeltaSettings(LakeSettings):
    """Delta tables under one root folder, ``path``."""

    type: Literal["delta"] = "delta"
    """`delta`: Delta tables in a lake."""
    path: Annotated[LocalPath, AfterValidator(_is_path)]
    """The root of the lake: a folder, or a URL of a file system that Spark supports."""
    table: TableTemplate = "{schema}/{table}"
    """The path of a table under the lake's root. Must contain `{schema}` and `{table}`."""
    catalog_table: CatalogName | None = None
    """The name of a table in Spark's catalog, such as `{schema}.{table}`, or with the catalog's name before
    it. Readers find the table under this name; its files stay at its path."""

    @property
    def scheme(self) -> str:
        """The scheme of the URL in ``path``, in lower case; empty for a folder."""
        return scheme_of(self.path)

    def excludes_writers(self, conf: Mapping[str, str]) -> bool:
        """Return True if Delta rejects a commit when another process has committed in between.

        ``conf``: Spark's settings, which may configure a log store.
        """
        if self.scheme not in S3_SCHEMES:
            return True
        names = (f"spark.delta.logStore.{self.scheme}.impl", "spark.delta.logStore.class")
        store = next((conf[name] for name in names if name in conf), "")
        return bool(store) and store.rpartition(".")[2] not in _SHARED_STORES


def _type_of(settings: Any) -> str | None:
    """Return the ``type`` of target settings; Delta if it is not set, None if the value is not a section."""
    named = settings.get("type", DEFAULT_TYPE) if isinstance(settings, Mapping) else None
    named = getattr(settings, "type", named)
    return named if isinstance(named, str) else None


TargetSettings = Annotated[
    Annotated[DeltaSettings, Tag("delta")]
    | Annotated[HttpSettings, Tag("http")]
    | Annotated[KafkaSettings, Tag("kafka")]
    | Annotated[IcebergSettings, Tag("iceberg")]
    | Annotated[PostgresSettings, Tag("postgres")]
    | Annotated[MysqlSettings, Tag("mysql")],
    Discriminator(_type_of),
]
"""The settings of any type of target. A new type needs a model and a line here."""
