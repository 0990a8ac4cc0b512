"""Settings of targets: one model for each type of target, chosen by ``type``.

Types: Delta; Iceberg, in any catalog that Spark supports; SQL databases; and messages, to a Kafka topic or an
HTTP endpoint.
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

``rows``: it stores rows, so that inserts and updates are distinguished, omitted values keep the stored ones,
and existing rows get a new column's default. Other targets forward each change as a message.
``soft-deletes``: rows can be marked as deleted. ``source-order``: rows keep their position, so that a change
older than the applied one never wins. ``append``, ``history``: these modes are supported. ``shards``: several
source tables can store their rows in one table, each with its own ledger. ``drop``, ``rename``: columns can
be dropped and renamed.
"""
ALL_FEATURES: Final[frozenset[TargetFeature]] = frozenset(get_args(TargetFeature))


class TargetModel(Model):
    """The settings of a type of target."""

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
        raise ValueError("it has another placeholder; use only {schema} and {table}")


def _names_tables(template: str) -> str:
    _both_placeholders(template, "{schema}.{table}")
    levels = template.replace("{schema}", "s").replace("{table}", "t").split(".")
    if not all(level.isidentifier() for level in levels) or len(levels) < 2:
        raise ValueError(
            "give names of letters, digits and _ with dots between them, with only the placeholders {schema} "
            "and {table}, as in lake.{schema}_{table}: a namespace, and the table's name last"
        )
    return template


CatalogName = Annotated[str, AfterValidator(_names_tables)]
"""A table's name in a catalog, with the placeholders {schema} and {table}."""


def _no_session_catalog(name: str) -> str:
    if name.lower() == "spark_catalog":
        raise ValueError("spark_catalog is Delta's catalog; use another name")
    return name


def _with_paths(properties: Any, info: ValidationInfo) -> Any:
    """Make a warehouse's path relative to the config's folder, and numbers and booleans text."""
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
    """Settings of tables in a lake."""

    table_properties: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default_factory=dict)
    """Properties that each table is created with, under the format's names, in addition to tidesink's own;
    equal names replace those. An existing table keeps its own."""
    single_writer: bool = False
    """For a lake on S3 without a way to exclude other writers: a promise that only one worker, and no other
    program, ever writes to these tables. Two workers would overwrite each other's commits without
    noticing."""


# Schemes of locations in S3 buckets.
S3_SCHEMES: Final = ("s3", "s3a", "s3n")


def scheme_of(place: str) -> str:
    """Return the scheme of a location, in lower case; empty for a folder."""
    return urlsplit(place).scheme if "://" in place else ""


class IcebergSettings(LakeSettings):
    """Iceberg tables of one catalog, each named by ``table``; ``catalog-properties`` are secret."""

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
    `nessie`) or `catalog-impl`, `uri`, `warehouse`, …; their values are never shown. If there are none,
    `spark.conf` defines the catalog under `spark.sql.catalog.NAME`."""
    table: CatalogName = "{schema}.{table}"
    """A table's namespace and name; must contain `{schema}` and `{table}`."""

    def catalog_values(self) -> dict[str, str]:
        """``catalog-properties`` in plain text. Never log them."""
        return {name: value.get_secret_value() for name, value in self.catalog_properties.items()}

    def excludes_writers(self, conf: Mapping[str, str]) -> bool:
        """Return True if the catalog, with Spark's settings, refuses a commit that another process overtook.

        A catalog of ``type: hadoop`` makes a version by a rename, which on S3 replaces an existing file,
        unless a lock is configured for it (Iceberg's ``HadoopTableOperations``, 1.10.1).
        """
        prefix = f"spark.sql.catalog.{self.catalog}."
        under = {name.removeprefix(prefix): value for name, value in conf.items() if name.startswith(prefix)}
        found = {**under, **self.catalog_values()}
        renames = found.get("type") == "hadoop" or found.get("catalog-impl", "").endswith(".HadoopCatalog")
        lock = found.get("lock-impl", "").rpartition(".")[2]
        locked = lock not in ("", "InMemoryLockManager")
        return locked or not renames or scheme_of(found.get("warehouse", "")) not in S3_SCHEMES


TlsMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]


def _database_url(scheme: str, url: str, *, needs_database: bool) -> str:
    parts = urlsplit(url)
    example = f"{scheme}://db.example.com:{5432 if scheme == 'postgresql' else 3306}/shop"
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            "put the user under user, the password under password, and TLS under tls, not into the URL"
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
        raise ValueError(
            "give a name that contains {table} and more, as in {table}_live, for a view next to the table"
        )
    return template


SqlTemplate = Annotated[str, AfterValidator(_names_a_table)]


class SqlTls(Model):
    """TLS to a database, under Postgres's names."""

    mode: TlsMode = "prefer"
    """`disable`; `prefer`: if the server supports it; `require`: without checking its certificate;
    `verify-ca`: the certificate is signed by `ca`; `verify-full`: it also names the host."""
    ca: LocalPath | None = None
    """A PEM file with the authorities that sign the server's certificate."""
    certificate: LocalPath | None = None
    """A PEM file with the worker's own certificate."""
    key: LocalPath | None = None
    """A PEM file with its private key."""


class SqlSettings(TargetModel):
    """Settings of every SQL database."""

    default_port: ClassVar[int]

    url: str = Field(repr=False)
    user: str
    """The user that the worker logs in as."""
    password: SecretStr | None = None
    """Its password, as `${env:NAME}` or `${file:path}`."""
    table: SqlTemplate = "{schema}.{table}"
    view: Annotated[str, AfterValidator(_names_a_view)] | None = None
    """The name of a view for each table, such as `{table}_live`, which shows the rows that are not deleted,
    without tidesink's own columns; must contain `{table}`, the table's own name. tidesink creates the view
    and changes it with the table."""
    tls: SqlTls = Field(default_factory=SqlTls)
    """TLS to the database."""


class PostgresSettings(SqlSettings):
    """Tables in a Postgres database."""

    default_port: ClassVar[int] = 5432

    type: Literal["postgres"]
    """`postgres`: tables in a Postgres database."""
    url: Annotated[
        str, AfterValidator(partial(_database_url, "postgresql", needs_database=True)), Field(repr=False)
    ]
    """The database, such as `postgresql://host:5432/database`, without user and password."""
    table: SqlTemplate = "{schema}.{table}"
    """A table's schema and name; must contain `{schema}` and `{table}`. Missing schemas are created."""


class MysqlSettings(SqlSettings):
    """Tables in a MySQL or MariaDB server."""

    default_port: ClassVar[int] = 3306

    type: Literal["mysql"]
    """`mysql`: tables in a MySQL or MariaDB server."""
    url: Annotated[
        str, AfterValidator(partial(_database_url, "mysql", needs_database=False)), Field(repr=False)
    ]
    """The server, such as `mysql://host:3306`, without user and password."""
    table: SqlTemplate = "{schema}.{table}"
    """A table's database and name; must contain `{schema}` and `{table}`. Missing databases are created."""
    key_length: Count = Field(default=KEY_LENGTH, ge=1, le=3072)
    """The length of a key's texts (in characters) and bytes in new tables, if neither the topic nor a
    definition has it, as in flat-avro. A longer value stops its table. All columns of a key together have
    3072 bytes, and a text needs four for each character."""


_CODEC_OPTIONS: Final = (
    "enable_tidb_extension",
    "avro_decimal_handling_mode",
    "avro_bigint_unsigned_handling_mode",
    "content_compatible",
    "large_message_handle_compression",
    "max_message_bytes",
    "namespace",
    "time_zone",
    "cluster_id",
    "debezium_disable_schema",
)


def _written(protocol: str) -> str:
    if CODECS[protocol].writes is None:
        raise ValueError(f"{protocol} can be read, but not written")
    return protocol


class KafkaSettings(TargetModel):
    """Tables sent to Kafka topics as row messages of one of the codecs, at least once."""

    features = frozenset()
    type: Literal["kafka"]
    """`kafka`: row messages in topics."""
    brokers: Brokers
    """Kafka bootstrap servers, `host:port`, as a list or separated by commas."""
    topic: TopicRuleText = "{schema}_{table}"
    """The topic of a table, as in TiCDC's dispatchers: `[prefix]{schema}[middle]{table}[suffix]`. The Avro
    protocols need both placeholders; the JSON ones may write all tables to one topic."""
    protocol: Annotated[ProtocolName, AfterValidator(_written)]
    """The protocol of the messages, as TiCDC writes it: `flat-avro` (or `avro`), `canal-json`,
    `debezium-json` (or `debezium`), `debezium-avro`."""
    schema_registry: Annotated[
        RegistrySettings | None,
        BeforeValidator(registry_section, json_schema_input_type=Texts | RegistrySettings | None),
    ] = None
    """The registry that schemas are registered in: a URL, or a section. Required by the Avro protocols."""
    auto_create_topic: bool = True
    """Create topics that do not exist."""
    partition_num: Count = Field(default=3, ge=1, le=10_000)
    """Partitions of a created topic."""
    replication_factor: Count = Field(default=1, ge=1, le=1000)
    """Replicas of a created topic."""
    enable_tidb_extension: bool = CodecOptions.enable_tidb_extension
    """TiCDC: write `_tidb` fields. The source must carry commit timestamps."""
    avro_decimal_handling_mode: DecimalMode = CodecOptions.avro_decimal_handling_mode
    """TiCDC: `precise` or `string`. Avro only."""
    avro_bigint_unsigned_handling_mode: UnsignedMode = CodecOptions.avro_bigint_unsigned_handling_mode
    """TiCDC: `long` or `string`. Avro only."""
    content_compatible: bool = CodecOptions.content_compatible
    """TiCDC: full column types in `mysqlType`. canal-json only."""
    large_message_handle_compression: Compression = CodecOptions.large_message_handle_compression
    """TiCDC: how every message is compressed: `none`, `snappy` or `lz4`. canal-json and
    debezium-json only."""
    max_message_bytes: ByteSize = Field(default=CodecOptions.max_message_bytes, ge=1, le=MOST_BYTES)
    """Size limit of a message; the topic must accept it."""
    namespace: str = Field(default=CodecOptions.namespace, min_length=1)
    """The first part of Avro record namespaces: the changefeed's namespace or keyspace. flat-avro only."""
    time_zone: Annotated[str, AfterValidator(known_time_zone)] = CodecOptions.time_zone
    """The zone in which TIMESTAMP texts are written."""
    cluster_id: str = Field(default=CodecOptions.cluster_id, min_length=1)
    """TiCDC: the name of the source in Debezium's messages. Debezium only."""
    debezium_disable_schema: bool = CodecOptions.debezium_disable_schema
    """TiCDC: leave the schema out of each message. debezium-json only."""
    kafka: Annotated[
        KafkaProperties,
        BeforeValidator(normalised_kafka, json_schema_input_type=dict[str, SecretStr | int | bool]),
    ] = Field(default_factory=dict)
    """Kafka client properties; see the list below."""

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
        """The brokers in the form for Kafka clients."""
        return ",".join(self.brokers)

    def confluent_properties(self) -> ClientSettings:
        """Return client properties for ``open_client``, with secrets in plain text. Never log them."""
        return confluent_properties(self.bootstrap_servers, self.kafka)

    def codec_options(self) -> CodecOptions:
        """Return the encoder's options."""
        return CodecOptions(**{name: getattr(self, name) for name in _CODEC_OPTIONS})


def _endpoint(url: str) -> str:
    secrets = "user name and password under target.auth"
    parts = http_url(url, "https://api.example.com/changes/{schema}/{table}", secrets=secrets)
    if parts.fragment:
        raise ValueError("a URL for requests has no fragment: remove # and what follows")
    _no_other_placeholder(url)
    if "{" in (parts.hostname or ""):
        raise ValueError("put placeholders into the path or the query, not into the host name")
    return url


class HttpSettings(TargetModel):
    """Tables sent to an HTTP endpoint as JSON, part of a batch in each request, at least once."""

    features = frozenset()
    type: Literal["http"]
    """`http`: requests with rows as JSON."""
    url: Annotated[str, AfterValidator(_endpoint)] = Field(repr=False)
    """URL to which rows are sent; may contain `{schema}` and `{table}`."""
    method: Literal["POST", "PUT"] = "POST"
    """`POST` or `PUT`."""
    format: Literal["json-lines", "array"] = "json-lines"
    """The body: `json-lines` (one object per line) or `array` (one JSON array)."""
    batch_rows: Count = Field(default=500, ge=1, le=1_000_000)
    """Most rows of one request."""
    parallel_requests: Count = Field(default=2, ge=1, le=1000)
    """Number of requests of one table that may run at once. The changes of a key stay in order."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers of every request; their values are never shown."""
    auth: SignIn | None = None
    """Credentials for the endpoint."""
    timeout: PositiveDuration = 30.0
    """Time limit for a connection, and for an answer."""
    attempts: Count = Field(default=5, ge=1, le=100)
    """Attempts of one request before its batch is retried, for as long as `retry.for` allows."""
    longest_wait: PositiveDuration = 60.0
    """Longest wait between two attempts; a longer `Retry-After` leaves the rest to `retry.for`."""
    tls: RegistryTls | None = None
    """Certificates for https URLs."""

    def header_values(self) -> dict[str, str]:
        """``headers`` in plain text. Never log them."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}

    def signing(self) -> Auth:
        """Return what signs requests."""
        return NoAuth() if self.auth is None else self.auth.signing()

    def tls_options(self) -> TlsOptions:
        """Return the client's form of these settings. Raises ConfigError for a missing file."""
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


def type_of_url(place: str) -> str | None:
    """Return the type of target that a URL belongs to; None for a folder or a file system's URL."""
    return _TYPES_BY_SCHEME.get(scheme_of(place))


def _is_path(place: str) -> str:
    found = type_of_url(place)
    if found == "http":
        raise RefusedSettingError(
            "is an HTTP URL, not a file system",
            "give a folder, or a URL of an object store (s3a://, gs://, abfss://); a target of type: http "
            "sends rows to a URL, which is target.url",
        )
    if found is not None:
        where = "brokers" if found == "kafka" else "url"
        raise RefusedSettingError(
            "is a URL, not the path of a lake", f"set type: {found}, and give it as target.{where}"
        )
    return place


def _tells_tables_apart(template: str) -> str:
    _both_placeholders(template, "{schema}/{table}")
    _no_other_placeholder(template)
    return template


TableTemplate = Annotated[str, AfterValidator(_tells_tables_apart)]


# Delta's log stores that do not notice a simultaneous commit of another process on S3.
_SHARED_STORES: Final = frozenset(
    f"{name}LogStore" for name in ("Azure", "GCS", "HDFS", "HadoopFileSystem", "Local", "S3SingleDriver")
)


class DeltaSettings(LakeSettings):
    """Delta tables under one root, ``path``, each at ``table`` in it."""

    type: Literal["delta"] = "delta"
    """`delta`: Delta tables in a lake."""
    path: Annotated[LocalPath, AfterValidator(_is_path)]
    """The lake's root: a folder, or a URL that Spark's file systems support."""
    table: TableTemplate = "{schema}/{table}"
    """A table's path under the root; must contain `{schema}` and `{table}`."""
    catalog_table: CatalogName | None = None
    """The name of each table in Spark's catalog, such as `{schema}.{table}`, or with the catalog in front.
    Readers find the table under this name; its rows stay at its path."""

    @property
    def scheme(self) -> str:
        """The scheme of ``path``, in lower case; empty for a folder."""
        return scheme_of(self.path)

    def excludes_writers(self, conf: Mapping[str, str]) -> bool:
        """Return True if Delta, with Spark's settings, refuses a commit that another process overtook."""
        if self.scheme not in S3_SCHEMES:
            return True
        names = (f"spark.delta.logStore.{self.scheme}.impl", "spark.delta.logStore.class")
        store = next((conf[name] for name in names if name in conf), "")
        return bool(store) and store.rpartition(".")[2] not in _SHARED_STORES


def _type_of(settings: Any) -> str | None:
    """Return the type that settings name; Delta if they name none, None if they are not settings."""
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
"""The settings of a target. A new type needs one model and one line here."""
