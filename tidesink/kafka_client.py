"""Kafka client properties: librdkafka's own names, and the Java client's if they mean exactly the same.

Names and meanings are from librdkafka's CONFIGURATION.md, and from ``SslConfigs`` and ``SaslConfigs`` of
Apache Kafka (PEM stores: KIP-651; OAuth with a token endpoint: KIP-768). A Java name without an equivalent is
refused, with a message that says what to set instead. ``sasl.jaas.config`` is parsed like Java's
``StreamTokenizer`` in Apache Kafka's ``JaasConfig``: ``module flag name=value name="value" ... ;``, with
strings in single or double quotes and backslash escapes.

Every value is a secret to pydantic, so no error and no repr of a config shows a value.
"""

from __future__ import annotations

import importlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tidesink.errors import ConfigError, SourceUnavailableError, nearest, one_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException


# Keeps librdkafka from writing to stderr, because errors are raised.
SILENT: Final = logging.getLogger("tidesink.librdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# confluent-kafka's name for the function that returns tokens. Its value is ``module:function``.
TOKEN_CALLBACK: Final = "oauth_cb"  # noqa: S105 - a name

_GENERAL: Final = (
    "bootstrap.servers client.id client.rack client.dns.lookup metadata.max.age.ms "
    "topic.metadata.refresh.interval.ms topic.metadata.propagation.max.ms reconnect.backoff.ms "
    "reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms connections.max.idle.ms "
    "broker.address.ttl broker.address.family socket.timeout.ms socket.keepalive.enable "
    "socket.nagle.disable socket.max.fails socket.send.buffer.bytes socket.receive.buffer.bytes "
    "socket.connection.setup.timeout.ms message.max.bytes receive.message.max.bytes api.version.request"
)
_FETCH: Final = (
    "fetch.wait.max.ms fetch.min.bytes fetch.max.bytes fetch.message.max.bytes max.partition.fetch.bytes "
    "fetch.queue.backoff.ms fetch.error.backoff.ms queued.min.messages queued.max.messages.kbytes check.crcs"
)
_TLS: Final = (
    "security.protocol ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem "
    "ssl.key.location ssl.key.pem ssl.key.password ssl.keystore.location ssl.keystore.password "
    "ssl.cipher.suites ssl.curves.list ssl.sigalgs.list ssl.crl.location "
    "ssl.endpoint.identification.algorithm enable.ssl.certificate.verification"
)
_SASL: Final = (
    "sasl.mechanism sasl.mechanisms sasl.username sasl.password sasl.oauthbearer.config "
    "sasl.oauthbearer.method sasl.oauthbearer.client.id sasl.oauthbearer.client.secret "
    "sasl.oauthbearer.scope sasl.oauthbearer.extensions sasl.oauthbearer.token.endpoint.url "
    "enable.sasl.oauthbearer.unsecure.jwt sasl.kerberos.service.name sasl.kerberos.principal "
    f"sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin {TOKEN_CALLBACK}"
)
KNOWN: Final = frozenset(f"{_GENERAL} {_FETCH} {_TLS} {_SASL}".split())
# Sorted, without the property that has its own setting in a config.
NAMES: Final = tuple(sorted(KNOWN - {"bootstrap.servers"}))
FILES: Final = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
    "sasl.kerberos.keytab",
)
_SECRETS: Final = frozenset(
    {
        "sasl.password",
        "sasl.jaas.config",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.extensions",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.truststore.password",
    }
)
_ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "security.protocol": PROTOCOLS,
    "sasl.mechanism": MECHANISMS,
    "sasl.oauthbearer.method": ("default", "oidc"),
    "ssl.endpoint.identification.algorithm": ("https", "none"),
}

# Properties whose value is a file, under all accepted names.
PATHS: Final = frozenset({*FILES, "ssl.truststore.location"})

# Properties that a user cannot set, because reading a range, or its progress, depends on them.
_OWNED: Final[Mapping[str, str]] = {
    "group.id": "remove it, because progress is stored in the target and not in a consumer group",
    "auto.offset.reset": "remove it, because an offset that Kafka no longer has is always an error",
    "isolation.level": "remove it, because records are always read with read_committed",
    "enable.auto.commit": "remove it, because no offset is committed to a consumer group",
    "enable.auto.offset.store": "remove it, because no offset is committed to a consumer group",
    "enable.partition.eof": "remove it, because it is always true",
    "debug": "remove it, because librdkafka's debug log may show secrets",
}
# Java's names of properties that have another name in librdkafka.
_RENAMED: Final[Mapping[str, str]] = {
    "sasl.mechanisms": "sasl.mechanism",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_TLS_BY_OPENSSL: Final = (
    "remove it, because OpenSSL negotiates TLS; name the ciphers in ssl.cipher.suites as OpenSSL does"
)
_CALLBACK: Final = (
    f"set {TOKEN_CALLBACK} to module:function, the name of a Python function that returns (token, expiry "
    "in seconds since 1970); for Amazon MSK with IAM, write a function that calls aws_msk_iam_sasl_signer"
)
# Java's names without an equivalent in librdkafka, with the remedy.
_REFUSED: Final[Mapping[str, str]] = {
    "ssl.truststore.password": "remove it, because PEM files of certificates have no password",
    "ssl.protocol": _TLS_BY_OPENSSL,
    "ssl.enabled.protocols": _TLS_BY_OPENSSL,
    "ssl.provider": _TLS_BY_OPENSSL,
    "ssl.trustmanager.algorithm": _TLS_BY_OPENSSL,
    "ssl.keymanager.algorithm": _TLS_BY_OPENSSL,
    "ssl.secure.random.implementation": _TLS_BY_OPENSSL,
    "ssl.engine.factory.class": _TLS_BY_OPENSSL,
    "sasl.client.callback.handler.class": _CALLBACK,
    "sasl.login.class": _CALLBACK,
    "request.timeout.ms": "use socket.timeout.ms",
    "default.api.timeout.ms": "use socket.timeout.ms",
    "max.poll.records": "remove it, because fetch.max.bytes and queued.max.messages.kbytes limit a read",
    "max.poll.interval.ms": "remove it, because no consumer group is joined",
    "session.timeout.ms": "remove it, because no consumer group is joined",
}
_JKS_TRUST: Final = (
    "librdkafka only reads PEM. Convert the store: keytool -importkeystore -srckeystore trust.jks "
    "-destkeystore trust.p12 -deststoretype PKCS12; openssl pkcs12 -in trust.p12 -nokeys -out ca.pem; then "
    "set ssl.ca.location: ca.pem"
)
_JKS_KEY: Final = (
    "librdkafka only reads PKCS#12 and PEM. Convert the store: keytool -importkeystore -srckeystore key.jks "
    "-destkeystore key.p12 -deststoretype PKCS12; then set ssl.keystore.location: key.p12 and "
    "ssl.keystore.type: PKCS12"
)
KERBEROS: Final = (
    "This confluent-kafka was built without GSSAPI (Kerberos), like its wheels on PyPI. Install librdkafka "
    "with libsasl2, and then confluent-kafka built against it (pip install --no-binary confluent-kafka "
    "confluent-kafka)."
)
_LOGIN_HANDLERS: Final = frozenset(
    {
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    }
)


class PropertyProblem(NamedTuple):
    """A property that is refused, with the reason and the remedy. It never contains the property's value."""

    name: str
    reason: str
    remedy: str


class ClientSettings(dict[str, Any]):
    """Settings for confluent-kafka's clients. Their repr shows ``***`` in place of each secret."""

    def __repr__(self) -> str:
        return repr(shown(self))


def shown(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties for a log or an error, with ``***`` in place of each secret."""
    return {name: "***" if name in _SECRETS else value for name, value in properties.items()}


def redacted(text: str, properties: Mapping[str, Any]) -> str:
    """Returns ``text`` with ``***`` in place of each secret in ``properties``."""
    for name in _SECRETS & properties.keys():
        if properties[name]:
            text = text.replace(str(properties[name]), "***")
    return text


def librdkafka_settings(properties: Mapping[str, str]) -> ClientSettings:
    """Convert a user's properties to librdkafka's settings, and Java's names to librdkafka's. The result can
    be pickled.

    Raises:
        ConfigError: A property is refused. The error has the first such property as ``key``, and never shows
            a value.
    """
    translation = _Translation(properties)
    for problem in translation.problems:
        raise ConfigError(f"{problem.name} {problem.reason}: {problem.remedy}", key=problem.name)
    return ClientSettings(translation.settings)


C = TypeVar("C")
# The type of ``open_client``, for callers that can be given another way to open clients.
OpenClient = Callable[..., Any]


def open_client(
    kind: Callable[..., C], properties: Mapping[str, str], own: Mapping[str, Any] | None = None, **more: Any
) -> C:
    """Open a client of confluent-kafka with a user's properties.

    Args:
        kind: ``Consumer``, ``Producer`` or ``AdminClient``.
        properties: The user's properties.
        own: More settings, which override the user's.
        more: More keyword arguments of ``kind``.

    Raises:
        ConfigError: A property is refused, here or by librdkafka.
    """
    from confluent_kafka import KafkaException

    settings = client_settings(properties)
    try:
        return kind({**settings, **(own or {})}, **more)
    except KafkaException as error:
        # The cause is left out, because librdkafka's text may show a value.
        raise refused_settings(error, settings) from None


def property_problems(properties: Mapping[str, str]) -> list[PropertyProblem]:
    """Returns all refused properties, with reasons and remedies."""
    return _Translation(properties).problems


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    """Returns librdkafka's settings for a client of this process, with the token callback imported.

    Raises:
        ConfigError: A property is refused, or the callback cannot be imported.
    """
    settings = librdkafka_settings(properties)
    name = settings.get(TOKEN_CALLBACK)
    if name is not None:
        settings[TOKEN_CALLBACK] = _token_function(str(name))
    return settings


def _token_function(name: str) -> Callable[[str], Any]:
    """Import the function with the name ``module:function``. Errors that the function raises are replaced, so
    that they show no token.

    Raises:
        ConfigError: The function cannot be imported.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{TOKEN_CALLBACK} {name!r} cannot be imported ({type(error).__name__}). Set it to "
            "module:function, with a module that workers and executors have installed.",
            key=TOKEN_CALLBACK,
        ) from error

    def give(config: str) -> Any:
        try:
            return function(config)
        except Exception as error:  # noqa: BLE001 - the callback is not our code
            # A signer's error may contain its secret, so only the error's class is shown.
            raise SourceUnavailableError(
                f"The token function {name} returned no token: it raised {type(error).__name__}."
            ) from None

    return give


def refused_settings(error: KafkaException, settings: Mapping[str, Any]) -> ConfigError:
    """Returns the error for properties that librdkafka refuses, without secrets."""
    from confluent_kafka import KafkaError

    if settings.get("sasl.mechanism") == "GSSAPI" and not _has_gssapi():
        return ConfigError(KERBEROS, key="sasl.mechanism")
    reason = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error)
    return ConfigError(f"librdkafka refuses the Kafka client properties: {redacted(reason, settings)}")


def no_answer(brokers: str, error: KafkaException) -> SourceUnavailableError:
    """Returns the error that no broker answers, with librdkafka's reason and the result of a test
    connection.
    """
    from confluent_kafka import KafkaError

    reason = error.args[0].str() if isinstance(error.args[0], KafkaError) else str(error)
    return SourceUnavailableError(f"No answer from {brokers} ({reason}): {why_silent(brokers)}")


class ConnectionErrors:
    """Keeps the newest connection error of a client, to explain why its requests time out. Use it as
    ``error_cb``.

    librdkafka reports errors when the client is polled.
    """

    def __init__(self) -> None:
        self._newest: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Keep an error.

        The error that all brokers are down is ignored, because the error before it says more.
        """
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._newest = error

    def taken(self) -> KafkaError | None:
        """Returns the newest error since the last call, or None."""
        newest, self._newest = self._newest, None
        return newest


_PROBE_SECONDS: Final = 2.0
# Seconds for which the result of a slow test connection counts for later errors of the same outage.
REMEMBER_SECONDS: Final = 10.0
_TIMEOUT: Final = "timeout"
_NO_HOST: Final = "host not found"
_NO_CONNECTION: Final = "no connection"


class BrokerProbes:
    """Makes test connections to brokers, to find why none answers. All threads may use it.

    The brokers of a cluster are tried at the same time. A timeout takes seconds, and so may an unknown host.
    So these two results are remembered for ``REMEMBER_SECONDS``, because an outage causes an error for each
    topic. Other results take no time, and are not remembered.

    ``connect``: returns why a connection to a broker's address fails, or None if it succeeds. ``clock``:
    returns seconds.
    """

    def __init__(
        self, connect: Callable[[str], str | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._clock = clock
        # Result by address, with the time until which it counts.
        self._remembered: dict[str, tuple[str, float]] = {}

    def faults(self, brokers: Iterable[str]) -> dict[str, str] | None:
        """Returns why each broker cannot be connected to, by address. Returns None as soon as one accepts."""
        addresses, now = dict.fromkeys(brokers), self._clock()
        known = {name: self._remembered.get(name, ("", now)) for name in addresses}
        found: dict[str, str] = {name: fault for name, (fault, until) in known.items() if now < until}
        wanted = [name for name in addresses if name not in found]
        results = SimpleQueue[tuple[str, str | None]]()
        for name in wanted:
            # A daemon thread, because a process must not wait for it at its end.
            threading.Thread(target=self._try, args=(name, results), daemon=True).start()
        for _ in wanted:
            name, fault = results.get()
            if fault is None:
                return None
            found[name] = fault
            if fault in (_TIMEOUT, _NO_HOST):
                self._remembered[name] = fault, self._clock() + REMEMBER_SECONDS
        return {name: found[name] for name in addresses}

    def _try(self, name: str, results: SimpleQueue[tuple[str, str | None]]) -> None:
        """Put a broker's address and the result of its test connection into ``results``."""
        try:
            fault = self._connect(name)
        except Exception:  # noqa: BLE001  (the caller waits for a result, and has an error of its own to show)
            fault = _NO_CONNECTION
        results.put((name, fault))


def why_silent(brokers: str, setting: str = "source", probes: BrokerProbes | None = None) -> str:
    """Returns why no broker answers, and what to do, for the end of a message.

    A test connection to each broker finds the reason, because librdkafka has one error code for all reasons.

    Args:
        brokers: The brokers' addresses, separated by commas.
        setting: The config section that has ``brokers`` and ``kafka``.
        probes: Makes the test connections. None: those that all errors of this process share.
    """
    faults = (probes or _PROBES).faults(broker.strip() for broker in brokers.split(","))
    if faults is None:
        return (
            "a broker accepts connections, but does not answer like Kafka. Check security.protocol and sasl "
            f"under {setting}.kafka, and that the brokers' advertised.listeners can be reached from here"
        )
    reasons = ", ".join(dict.fromkeys(faults.values()))
    return f"{reasons}. Check that the brokers run, and that {setting}.brokers is right"


def _connected(broker: str) -> str | None:
    """Returns why a connection to a broker's address fails, or None if it succeeds."""
    host, _, port = broker.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS):
            return None
    except ConnectionRefusedError:
        return "connection refused"
    except socket.gaierror:
        return _NO_HOST
    except TimeoutError:
        return _TIMEOUT
    except (OSError, ValueError):
        return _NO_CONNECTION


_PROBES: Final = BrokerProbes(_connected)


def _has_gssapi() -> bool:
    """Returns True if librdkafka was built with GSSAPI (Kerberos). Creating a client shows it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "log_level": 0})
    except KafkaException:
        return False
    return True


class _Translation:
    """Converts a user's properties to librdkafka's settings, and collects refused properties."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._given = dict(properties)
        self.settings: dict[str, Any] = {}
        self.problems: list[PropertyProblem] = []
        self._truststore()
        self._keystore()
        self._jaas()
        self._login_handler()
        for name, value in self._given.items():
            self._plain(name, value)
        self._check_values()

    def _refuse(self, name: str, reason: str, remedy: str) -> None:
        self.problems.append(PropertyProblem(name, reason, remedy))

    def _set(self, name: str, value: str, source: str) -> None:
        """Set a property of librdkafka. It is refused if it already has another value."""
        if name in self.settings and self.settings[name] != value:
            self._refuse(source, f"means {name}, which already has another value", "remove one of them")
        self.settings[name] = value

    def _plain(self, name: str, value: str) -> None:
        if name in _OWNED:
            self._refuse(name, "cannot be set", _OWNED[name])
        elif name in _REFUSED:
            self._refuse(name, "is a property of the Java client without an equivalent", _REFUSED[name])
        elif name in _RENAMED or name in KNOWN:
            if name == "ssl.endpoint.identification.algorithm" and value == "":
                value = "none"  # the Java client's spelling of "no check"
            self._set(_RENAMED.get(name, name), value, name)
        else:
            reason = f"is not a client property that tidesink supports{nearest(name, NAMES)}"
            self._refuse(name, reason, one_of(name, NAMES))

    def _truststore(self) -> None:
        kind = self._given.pop("ssl.truststore.type", None)
        location = self._given.pop("ssl.truststore.location", None)
        if location is not None and _is_pem(kind):
            self._set("ssl.ca.location", location, "ssl.truststore.location")
        elif location is not None:
            what = f"a {kind.upper()} store" if kind else "a Java store, unless ssl.truststore.type is PEM"
            self._refuse("ssl.truststore.location", f"names {what}", _JKS_TRUST)
        elif kind is not None and not _is_pem(kind):
            self._refuse("ssl.truststore.type", f"is {kind}", _JKS_TRUST)

    def _keystore(self) -> None:
        kind = self._given.pop("ssl.keystore.type", None)
        location = self._given.get("ssl.keystore.location")
        if _is_pem(kind):
            if location is not None:  # one file with both the chain and the key
                del self._given["ssl.keystore.location"]
                for name in ("ssl.certificate.location", "ssl.key.location"):
                    self._set(name, location, "ssl.keystore.location")
        elif (kind or "PKCS12").upper() != "PKCS12":
            self._refuse("ssl.keystore.type", f"is {kind}", _JKS_KEY)
        elif kind is None and location is not None and Path(location).suffix.lower() == ".jks":
            self._refuse("ssl.keystore.location", "names a Java store", _JKS_KEY)

    def _jaas(self) -> None:
        text = self._given.pop("sasl.jaas.config", None)
        if text is None:
            return
        try:
            entry = parse_jaas(text)
        except JaasSyntaxError as error:
            self._refuse(
                "sasl.jaas.config",
                f"cannot be parsed ({error})",
                "use sasl.username and sasl.password instead",
            )
            return
        mechanism = self._mechanism()
        expected, names = _LOGIN_MODULES.get(entry.module.rpartition(".")[2], ((), {}))
        if entry.module.endswith("Krb5LoginModule"):
            self._refuse(
                "sasl.jaas.config",
                "is for Kerberos",
                "use sasl.kerberos.keytab and sasl.kerberos.principal instead",
            )
        elif not expected:
            self._refuse("sasl.jaas.config", f"names the login module {entry.module}", _CALLBACK)
        elif mechanism not in expected:
            self._refuse(
                "sasl.jaas.config", f"is for {' or '.join(expected)}", f"set sasl.mechanism: {expected[0]}"
            )
        else:
            self._jaas_options(entry, names)

    def _jaas_options(self, entry: JaasEntry, names: Mapping[str, str]) -> None:
        for option, value in entry.options.items():
            if option in names:
                self._set(names[option], value, "sasl.jaas.config")
            else:
                self._refuse(
                    "sasl.jaas.config",
                    f"has the option {option}, which has no equivalent",
                    f"remove it; supported options are {', '.join(names)}",
                )

    def _login_handler(self) -> None:
        handler = self._given.pop("sasl.login.callback.handler.class", None)
        if handler is not None and handler not in _LOGIN_HANDLERS:
            self._refuse("sasl.login.callback.handler.class", "is a Java class", _CALLBACK)
        elif self._mechanism() == "OAUTHBEARER" and "sasl.oauthbearer.token.endpoint.url" in self._given:
            # Java has no such property, because the token endpoint implies it.
            self._given.setdefault("sasl.oauthbearer.method", "oidc")

    def _mechanism(self) -> str:
        return self._given.get("sasl.mechanism") or self._given.get("sasl.mechanisms") or "GSSAPI"

    def _check_values(self) -> None:
        for name, allowed in _ALLOWED.items():
            value = self.settings.get(name)
            if value is not None and value not in allowed:
                self._refuse(name, "has a value that is not allowed", f"use {' or '.join(allowed)}")
        suites = str(self.settings.get("ssl.cipher.suites", ""))
        if "_WITH_" in suites:
            self._refuse(
                "ssl.cipher.suites",
                "has Java's names of cipher suites",
                "use OpenSSL's names (openssl ciphers lists them)",
            )
        callback = self.settings.get(TOKEN_CALLBACK)
        if callback is not None and not all(str(callback).partition(":")):
            self._refuse(TOKEN_CALLBACK, "names no function", "set it to module:function")


# Java's login modules with their mechanisms, and the properties that their options set.
_PASSWORD_PROPERTIES: Final = {"username": "sasl.username", "password": "sasl.password"}
_LOGIN_MODULES: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]] = {
    "PlainLoginModule": (("PLAIN",), _PASSWORD_PROPERTIES),
    "ScramLoginModule": (("SCRAM-SHA-512", "SCRAM-SHA-256"), _PASSWORD_PROPERTIES),
    "OAuthBearerLoginModule": (
        ("OAUTHBEARER",),
        {
            "clientId": "sasl.oauthbearer.client.id",
            "clientSecret": "sasl.oauthbearer.client.secret",
            "scope": "sasl.oauthbearer.scope",
        },
    ),
}


def _is_pem(kind: str | None) -> bool:
    return kind is not None and kind.upper() == "PEM"


_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN: Final = re.compile(
    r"""\s*(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)'|([=;])|([^\s"'=;]+))""",
)
_ESCAPE: Final = re.compile(r"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_CONTROL: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasSyntaxError(ValueError):
    """The text is not a valid JAAS entry. The message contains no part of the text."""


class JaasEntry(NamedTuple):
    """A login module with its options. ``options`` may have secrets."""

    module: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"JaasEntry({self.module!r}, options {', '.join(self.options)})"


def parse_jaas(text: str) -> JaasEntry:
    """Parse a text with exactly one JAAS entry.

    Raises:
        JaasSyntaxError: The text is not exactly one entry.
    """
    tokens = list(_tokens(text))
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise JaasSyntaxError("it must be one login module, a flag, options, and a semicolon")
    (module, _), (flag, _), *rest = tokens[:-1]
    if flag.lower() not in _FLAGS:
        raise JaasSyntaxError("the word after the login module must be 'required'")
    return JaasEntry(module, dict(_options(rest)))


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Yields each word of the text, and True if the word is a punctuation mark."""
    position, text = 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise JaasSyntaxError("a quotation mark has no end")
        double, single, sign, word = match.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            yield _ESCAPE.sub(_character, quoted), False
        else:
            yield sign or word, sign is not None
        position = match.end()


def _options(tokens: list[tuple[str, bool]]) -> Iterator[tuple[str, str]]:
    if len(tokens) % 3:
        raise JaasSyntaxError(
            "an option must be name=value; a value with special characters needs quotation marks"
        )
    for index in range(0, len(tokens), 3):
        (name, bad), equals, (value, worse) = tokens[index : index + 3]
        if bad or worse or equals != ("=", True):
            raise JaasSyntaxError(
                "an option must be name=value; a value with special characters needs quotation marks"
            )
        yield name, value


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 8)) if escape[1] else _CONTROL.get(escape[2], escape[2])
