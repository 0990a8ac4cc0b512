"""The HTTP target: sends a batch's rows to an endpoint in requests with an idempotency key."""

from __future__ import annotations

import hashlib
import random
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, unquote, unquote_plus, urlsplit

import orjson
import pyarrow as pa
import requests
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from tenacity import RetryCallState, Retrying, retry_if_exception_type

from tidesink.config.targets import HttpSettings
from tidesink.errors import ConfigError, EncodeError, TargetError, TransientTargetError
from tidesink.events import ColumnType, Row, TableId
from tidesink.schema_registry.transport import (
    Auth,
    NoAuth,
    Signature,
    TlsOptions,
    causes_of,
    hide,
    retry_after_of,
    safe_url,
)
from tidesink.sinks.spark.frames import SparkRows
from tidesink.sinks.targets.base import Capabilities, DeleteMode, ReducedBatch, Target
from tidesink.sinks.targets.stream.encoding import HttpPreflight
from tidesink.sinks.targets.stream.table import (
    MessageRow,
    MessageRows,
    MessageTable,
    Sent,
    Stamp,
    StoreLedger,
    batch_frame,
    check_sendable,
    check_shape,
    run_tasks,
)
from tidesink.typemap.target_schema import TargetSchema
from tidesink.typemap.values import json_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.config import Config
    from tidesink.sinks.spark.engine import SparkEngine
    from tidesink.sinks.state.progress import StateStore

CAPABILITIES: Final = Capabilities(
    name="http",
    exactly_once=False,
    features=HttpSettings.features,
)
PREFLIGHT: Final = HttpPreflight()
_REFUSED: Final = frozenset({401, 403})
# 501 is the answer of a server that does not implement HEAD.
_DOWN: Final = frozenset({500, 502, 503, 504})


def open_target(config: Config, _spark: SparkEngine, store: StateStore) -> HttpTarget:
    """Return the HTTP target that a config describes. Its progress is recorded in the state store."""
    return HttpTarget(cast("HttpSettings", config.target), store)


def place_of(settings: HttpSettings, table: TableId) -> str:
    """Return the URL to which a table's rows are sent, without secrets, for display."""
    return safe_url(table_url(settings.url, table))


def try_target(settings: HttpSettings) -> str:
    """Send a HEAD request to the endpoint, and return a text with the status. Sends no row.

    Raises:
        TidesinkError: the endpoint does not answer, or refuses access.
    """
    endpoint = endpoint_of(settings, TableId("tidesink", "validate"))
    with Requests(replace(endpoint, attempts=1)) as asking:
        status = asking.ask()
    if status in _REFUSED:
        raise ConfigError(
            f"The endpoint refuses access (HTTP {status}). Check target.auth.", url=endpoint.shown
        )
    if status in _DOWN:
        raise TransientTargetError(
            f"The endpoint answers HTTP {status}. The endpoint, or the server that it forwards to, is down. "
            "Start it again, or correct target.url.",
            url=endpoint.shown,
        )
    return f"{urlsplit(endpoint.url).netloc} answers (HTTP {status} to HEAD)"


def table_url(template: str, table: TableId) -> str:
    """Return the URL of a table's rows.

    ``template``: the URL with ``{schema}`` and ``{table}``. The names are percent-encoded, so that a slash or
        dots in a name do not change the path.
    """
    return template.replace("{schema}", _quoted(table.schema)).replace("{table}", _quoted(table.name))


def _quoted(name: str) -> str:
    # A path segment that consists of dots means the parent folder, even if it is percent-encoded.
    return quote(name, safe="") if name.strip(".") else "~" * len(name)


def endpoint_of(settings: HttpSettings, table: TableId) -> Endpoint:
    """Return the endpoint to which a table's rows are sent.

    Raises:
        ConfigError: a certificate file is missing.
    """
    return Endpoint(
        url=table_url(settings.url, table),
        method=settings.method,
        format=settings.format,
        headers=settings.header_values(),
        auth=settings.signing(),
        tls=settings.tls_options(),
        timeout=settings.timeout,
        attempts=settings.attempts,
        longest_wait=settings.longest_wait,
    )


@dataclass(frozen=True)
class HttpTarget(Target):
    """A target that sends rows to an HTTP endpoint."""

    settings: HttpSettings
    store: StateStore

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of an HTTP target."""
        return CAPABILITIES

    def open_table(
        self, shape: TargetSchema, *, pipeline: str, delete_mode: DeleteMode = "hard"
    ) -> HttpTable:
        """Open a table that is sent to its URL. Does not connect yet.

        Raises:
            ConfigError: a certificate file is missing.
            SchemaRefusedError: the table has no key, or uses soft deletes.
        """
        check_shape(shape, delete_mode)
        url = place_of(self.settings, shape.table)
        ledger = StoreLedger(
            self.store, ("http", url), shape.table, source=shape.source, pipeline=pipeline, keys=shape.keys
        )
        return HttpTable(self.settings, shape, ledger=ledger)


class HttpTable(MessageTable):
    """A table whose rows are sent to its URL. It is used by one worker thread."""

    def __init__(self, settings: HttpSettings, shape: TargetSchema, *, ledger: StoreLedger) -> None:
        super().__init__(shape, ledger=ledger)
        self._settings = settings
        self._endpoint = endpoint_of(settings, shape.table)

    def _send(self, batch: ReducedBatch, stamp: Stamp) -> Sent:
        slices = Slices(self._endpoint, batch.shape, stamp, self._settings.batch_rows)
        if batch.truncates:
            slices.truncate()
            return Sent(0, 0)
        check_sendable(batch, "http", tells=True)
        frame = _in_order(batch_frame(batch), batch.shape, self._settings.parallel_requests)
        return run_tasks(SparkRows(frame), slices.run, table=str(batch.shape.table))


def _in_order(frame: DataFrame, shape: TargetSchema, tasks: int) -> DataFrame:
    """Return the frame partitioned and sorted by key. So if a batch is sent again, it has the same requests.

    ``tasks``: number of tasks that send requests in parallel.
    """
    keys = [F.col("key").getField(column.name) for column in shape.key_columns]
    return frame.repartition(tasks, *keys).sortWithinPartitions(*keys)


_MEDIA_TYPES: Final = {"json-lines": "application/x-ndjson", "array": "application/json"}
_PASSING: Final = frozenset({408, 425, 429})
_EXCERPT: Final = 200
_FIRST_WAIT: Final = 0.3
# Shortest part of a header or a query that is hidden as a secret. Shorter parts, such as numbers and flags,
# occur in many texts.
_LEAST_SECRET: Final = 4


@dataclass(frozen=True)
class Endpoint:
    """The HTTP endpoint of a table's rows. It is pickled and sent to the executors.

    ``timeout``: seconds to wait for an answer.
    ``attempts``: maximum number of attempts to send a request.
    ``longest_wait``: maximum time between two attempts, in seconds.
    """

    url: str = field(repr=False)  # its query may be a secret
    method: str
    format: str
    headers: Mapping[str, str] = field(repr=False)
    auth: Auth = field(default_factory=NoAuth, repr=False)
    tls: TlsOptions = field(default_factory=TlsOptions)
    timeout: float = 30.0
    attempts: int = 5
    longest_wait: float = 60.0

    @property
    def shown(self) -> str:
        """The endpoint's URL without secrets, for messages."""
        return safe_url(self.url)

    def secrets(self) -> tuple[str, ...]:
        """Return the texts to hide in messages: secrets, in all forms in which an answer may repeat them."""
        _, _, query = self.url.partition("?")
        parts = (*(part for value in self.headers.values() for part in _header_parts(value)), *_values(query))
        whole = (*self.auth.secrets(), *self.headers.values(), query)
        return (*whole, *(part for part in parts if len(part) >= _LEAST_SECRET))


def _header_parts(value: str) -> Iterator[str]:
    """Yield the secret parts of a header's value: the token after a scheme, or the values of a cookie."""
    first, *rest = re.split(r"[\s;,]+", value)
    for part in (first, *rest) if "=" in first else rest:
        yield part
        yield part.partition("=")[2].strip('"')


def _values(query: str) -> Iterator[str]:
    """Yield each value in a URL's query in several forms: as written, decoded, and encoded again."""
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        written = value or name
        meant = unquote_plus(written)
        yield from (written, unquote(written), meant, quote(meant, safe=""))


class _PassingFault(Exception):  # noqa: N818  # never leaves this module
    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class Requests:
    """Sends requests to one endpoint, one after the other over one connection. A context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session = requests.Session()

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_error: object) -> None:
        self._session.close()

    def send(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request, and repeat it until the endpoint has accepted it.

        Raises:
            TargetError: the endpoint's answer is an error that repeating the request does not solve. The
                message has the status and the beginning of the answer.
            TransientTargetError: the endpoint did not accept the request in any attempt.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(_PassingFault), wait=self._wait, stop=self._gives_up, reraise=True
        )
        try:
            retrying(self._attempt, body, headers)
        except _PassingFault as fault:
            attempts = retrying.statistics.get("attempt_number", 1)
            later = "" if fault.retry_after is None else f" It asks to retry in {fault.retry_after:g} s."
            raise TransientTargetError(
                f"The endpoint did not accept a request in {attempts} attempts ({fault.reason}).{later} The "
                "batch is sent again.",
                url=self._endpoint.shown,
            ) from fault.__cause__

    def ask(self) -> int:
        """Send a HEAD request, and return the HTTP status of the answer.

        Raises:
            TargetError: the endpoint's certificate is not trusted, or the URL or a header is invalid.
            TransientTargetError: the endpoint does not answer.
        """
        try:
            return self._request("HEAD", b"", {}).status_code
        except requests.RequestException as exc:
            raise TransientTargetError(self._reason(exc), url=self._endpoint.shown) from exc

    def _attempt(self, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            response = self._request(self._endpoint.method, body, headers)
        except requests.RequestException as exc:
            raise _PassingFault(self._reason(exc)) from exc
        status = response.status_code
        if 200 <= status < 300:
            return
        if status in _PASSING or status >= 500:
            raise _PassingFault(f"HTTP {status}{self._said(response)}", retry_after_of(response))
        if 300 <= status < 400:
            where = safe_url(response.headers.get("Location", "the address that it names"))
            raise TargetError(
                f"The endpoint answers HTTP {status}, but redirects are not followed. Set target.url to "
                f"{hide(where, self._endpoint.secrets())}.",
                url=self._endpoint.shown,
            )
        raise TargetError(
            f"The endpoint refuses a request with HTTP {status}{self._said(response)}. "
            f"{_REMEDIES.get(status, 'Correct the reported problem in the config or at the endpoint.')}",
            url=self._endpoint.shown,
        )

    def _request(self, method: str, body: bytes, headers: Mapping[str, str]) -> requests.Response:
        endpoint = self._endpoint
        sent: dict[str, Any] = {
            "Content-Type": _MEDIA_TYPES[endpoint.format],
            "Accept": "application/json",
            **endpoint.headers,
            **headers,
        }
        return self._session.request(
            method,
            endpoint.url,
            data=body,
            headers=sent,
            auth=Signature(endpoint.auth),
            timeout=endpoint.timeout,
            allow_redirects=False,
            verify=endpoint.tls.verify_argument(),
            cert=endpoint.tls.cert_argument(),
        )

    def _said(self, response: requests.Response) -> str:
        text = hide(response.content[:4096].decode("utf-8", "replace"), self._endpoint.secrets())
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return f" ({line if len(line) <= _EXCERPT else line[:_EXCERPT] + '…'})" if line else ""

    def _reason(self, error: requests.RequestException) -> str:
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes_of(error)):
            raise TargetError(
                "The endpoint's certificate is not trusted. Set target.tls.ca to the file of its certificate "
                "authority, and check the host name in target.url.",
                url=self._endpoint.shown,
            ) from error
        if isinstance(error, requests.exceptions.InvalidHeader | requests.exceptions.InvalidURL):
            raise TargetError(
                "The request cannot be sent, because target.url or a header under target.headers is invalid. "
                "Correct it in the config.",
                url=self._endpoint.shown,
            ) from error
        if isinstance(error, requests.Timeout):
            return f"no answer within {self._endpoint.timeout:g} s; raise target.timeout if it is too short"
        return f"no connection: {_reason_of(error)}; check target.url, and that the endpoint runs"

    def _wait(self, state: RetryCallState) -> float:
        asked = _fault(state).retry_after
        if asked is not None:
            return asked
        ceiling = min(_FIRST_WAIT * 2**state.attempt_number, self._endpoint.longest_wait)
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311  # jitter

    def _gives_up(self, state: RetryCallState) -> bool:
        asked = _fault(state).retry_after or 0.0
        return state.attempt_number >= self._endpoint.attempts or asked > self._endpoint.longest_wait


def _reason_of(error: BaseException) -> str:
    """Return why a connection failed, from the socket error that caused the error of ``requests``."""
    for cause in causes_of(error):
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, socket.gaierror):
            return "host not found"
        if isinstance(cause, ssl.SSLError):
            return "TLS failed"
    return type(error).__name__


_REMEDIES: Final = {
    401: "Check target.auth.",
    403: "Allow the user of target.auth to write to the endpoint.",
    404: "Check target.url.",
    405: "Check target.method.",
    413: "Lower target.batch-rows.",
    415: "Check target.format.",
}


def _fault(state: RetryCallState) -> _PassingFault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _PassingFault)  # noqa: S101  # the only error that is retried
    return error


IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
EPOCH_HEADER: Final = "Tidesink-Epoch"
BATCH_HEADER: Final = "Tidesink-Batch"


def request_headers(stamp: Stamp, body: bytes) -> dict[str, str]:
    """Return the headers of a request: the idempotency key, the epoch and the batch number.

    The idempotency key is a hash of the batch and the body, so a request that is sent again has the same key.
    """
    identity = orjson.dumps([stamp.pipeline, *stamp.table, stamp.batch, stamp.cut])
    return {
        IDEMPOTENCY_HEADER: hashlib.sha256(identity + b"\n" + body).hexdigest(),
        EPOCH_HEADER: str(stamp.epoch),
        BATCH_HEADER: str(stamp.batch),
    }


def body_of(rows: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """Return the body of a request: one JSON object per line, or one JSON array.

    ``form``: ``json-lines`` or ``array``.

    Raises:
        EncodeError: a row has a value that JSON cannot represent.
    """
    try:
        if form == "array":
            return orjson.dumps(rows)
        return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    except TypeError as error:
        raise EncodeError(f"A row cannot be written as JSON ({error}).") from error


@dataclass(frozen=True)
class Slices:
    """The work of a Spark task: sends its rows in requests. It is pickled and sent to the executors.

    ``stamp``: identifies the batch in headers and idempotency keys.
    ``batch_rows``: number of rows in each request.
    """

    endpoint: Endpoint
    shape: TargetSchema
    stamp: Stamp
    batch_rows: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sent]:
        """Send the rows of a task in requests. Yields the row counts of each request that was accepted.

        Raises:
            TargetError: a row has no key, or the endpoint refuses a request permanently.
            TransientTargetError: the endpoint did not accept a request, but may accept it later.
        """
        with Requests(self.endpoint) as sending:
            for rows in self._slices(batches):
                body = body_of([self._object(row) for row in rows], self.endpoint.format)
                sending.send(body, request_headers(self.stamp, body))
                deletes = sum(row.op == "delete" for row in rows)
                yield Sent(len(rows) - deletes, deletes)

    def truncate(self) -> None:
        """Send a request that reports that the source truncated the table.

        Raises:
            TargetError: the endpoint refuses the request permanently.
            TransientTargetError: the endpoint did not accept the request, but may accept it later.
        """
        body = body_of([{**self._head("truncate"), "key": None, "after": None}], self.endpoint.format)
        with Requests(self.endpoint) as sending:
            sending.send(body, request_headers(self.stamp, body))

    def _slices(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[MessageRow]]:
        # Requests have a fixed number of rows, regardless of Arrow's batches, so a batch sent again has the
        # same requests.
        reader = MessageRows(self.shape, self.shape.time_zone)
        waiting: list[MessageRow] = []
        for batch in batches:
            for row in reader.read(batch):
                waiting.append(row)
                if len(waiting) == self.batch_rows:
                    yield waiting
                    waiting = []
        if waiting:
            yield waiting

    def _head(self, op: str) -> dict[str, Any]:
        table = self.shape.table
        return {"table": {"schema": table.schema, "name": table.name}, "op": op}

    def _object(self, row: MessageRow) -> dict[str, Any]:
        row.check_key()
        after = None if row.after is None else self._values(row.after)
        document = {**self._head(row.op), "key": self._values(row.key), "after": after}
        if row.commit_ts is not None:
            document["commit_ts"] = row.commit_ts
        return {**document, "kept": list(row.kept)} if row.kept else document

    def _values(self, row: Row) -> dict[str, Any]:
        return {name: json_value(value, self._types.get(name)) for name, value in row.items()}

    @cached_property
    def _types(self) -> Mapping[str, ColumnType]:
        return {column.name: column.type for column in self.shape.columns if column.type.name == "float"}
