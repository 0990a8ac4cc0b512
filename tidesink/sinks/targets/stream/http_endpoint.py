"""HTTP services as targets: slices of a batch as requests with an idempotency key."""

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
from tidesink.sinks.targets.base import Capabilities, DeleteMode, ReducedBatch
from tidesink.sinks.targets.stream.encoding import HttpPreflight
from tidesink.sinks.targets.stream.table import (
    MessageRow,
    MessageRows,
    MessageTable,
    Sent,
    Stamp,
    StoreLedger,
    batch_frame,
    check_kept,
    check_shape,
    run_tasks,
)
from tidesink.typemap.target_schema import TableShape
from tidesink.typemap.values import json_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidesink.config import Config
    from tidesink.sinks.state.progress import StateStore


CAPABILITIES: Final = Capabilities(
    name="http",
    exactly_once=False,
    features=HttpSettings.features,
)
PREFLIGHT: Final = HttpPreflight()
_REFUSED: Final = frozenset({401, 403})
# 501 is what a server answers that has no HEAD.
_DOWN: Final = frozenset({500, 502, 503, 504})


def open_target(config: Config, _spark: SparkSession, store: StateStore) -> HttpTarget:
    """The endpoint of a config, with its ledger in the state store."""
    return HttpTarget(cast("HttpSettings", config.target), store)


def place_of(settings: HttpSettings, table: TableId) -> str:
    """A table's URL, without what may be secret in it."""
    return safe_url(table_url(settings.url, table))


def try_target(settings: HttpSettings) -> str:
    """What became of asking the endpoint with HEAD, which sends no row.

    Raises:
        TidesinkError: it does not answer, or refuses us.
    """
    endpoint = endpoint_of(settings, TableId("tidesink", "validate"))
    with Requests(replace(endpoint, attempts=1)) as asking:
        status = asking.ask()
    if status in _REFUSED:
        raise ConfigError(f"the endpoint refuses us (HTTP {status}): check target.auth", url=endpoint.shown)
    if status in _DOWN:
        raise TransientTargetError(
            f"the endpoint answers HTTP {status}: it, or what it forwards to, is down", url=endpoint.shown
        )
    return f"{urlsplit(endpoint.url).netloc} answers (HTTP {status} to HEAD)"


def table_url(template: str, table: TableId) -> str:
    """The URL of a table: names are quoted, so that none is a step in the path."""
    return template.replace("{schema}", _quoted(table.schema)).replace("{table}", _quoted(table.name))


def _quoted(name: str) -> str:
    # A segment of dots alone is a step upwards, quoted or not.
    return quote(name, safe="") if name.strip(".") else "~" * len(name)


def endpoint_of(settings: HttpSettings, table: TableId) -> Endpoint:
    """Where a table's rows go and how.

    Raises:
        ConfigError: a certificate is not there.
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
class HttpTarget:
    """The endpoint of ``settings``."""

    settings: HttpSettings
    store: StateStore

    @property
    def capabilities(self) -> Capabilities:
        """What an endpoint can do."""
        return CAPABILITIES

    def open_table(self, shape: TableShape, *, pipeline: str, delete_mode: DeleteMode = "hard") -> HttpTable:
        """The URL of ``shape``'s table; nothing is asked of it.

        Raises:
            ConfigError: a certificate is not there.
            SchemaRefusedError: the table has no key, or is to be soft-deleted from.
        """
        check_shape(shape, delete_mode)
        place = place_of(self.settings, shape.table)
        ledger = StoreLedger(
            self.store, ("http", place), shape.table, source=shape.source, pipeline=pipeline, keys=shape.keys
        )
        return HttpTable(self.settings, shape, ledger=ledger)


class HttpTable(MessageTable):
    """One table's URL, open for one worker thread."""

    def __init__(self, settings: HttpSettings, shape: TableShape, *, ledger: StoreLedger) -> None:
        super().__init__(shape, ledger=ledger)
        self._settings = settings
        self._endpoint = endpoint_of(settings, shape.table)

    def _send(self, batch: ReducedBatch, stamp: Stamp) -> Sent:
        slices = Slices(self._endpoint, batch.shape, stamp, self._settings.batch_rows)
        if batch.truncates:
            slices.truncate()
            return Sent(0, 0)
        frame = batch_frame(batch)
        check_kept(frame, batch, "http", tells=True)
        return run_tasks(
            _in_order(frame, batch.shape, self._settings.parallel_requests),
            slices.run,
            table=str(batch.shape.table),
        )


def _in_order(frame: DataFrame, shape: TableShape, tasks: int) -> DataFrame:
    """The rows by their keys: the same rows in the same slices, however often they are sent."""
    keys = [F.col("key").getField(column.name) for column in shape.key_columns]
    return frame.repartition(tasks, *keys).sortWithinPartitions(*keys)


_MEDIA_TYPES: Final = {"json-lines": "application/x-ndjson", "array": "application/json"}
_PASSING: Final = frozenset({408, 425, 429})
_EXCERPT: Final = 200
_FIRST_WAIT: Final = 0.3
# A shorter part of a header or a query (a number, a flag) is no secret, and would be cut out of any text.
_LEAST_SECRET: Final = 4


@dataclass(frozen=True)
class Endpoint:
    """Where a table's rows go and how; goes to the executors as it is. Times in seconds."""

    url: str = field(repr=False)  # what stands behind ? may be a secret
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
        """The URL fit to be shown."""
        return safe_url(self.url)

    def secrets(self) -> tuple[str, ...]:
        """Texts which must never be shown, in the forms in which an answer may repeat them."""
        _, _, query = self.url.partition("?")
        parts = (*(part for value in self.headers.values() for part in _header_parts(value)), *_values(query))
        whole = (*self.auth.secrets(), *self.headers.values(), query)
        return (*whole, *(part for part in parts if len(part) >= _LEAST_SECRET))


def _header_parts(value: str) -> Iterator[str]:
    """The token without its scheme, and the values of a cookie."""
    first, *rest = re.split(r"[\s;,]+", value)
    for part in (first, *rest) if "=" in first else rest:
        yield part
        yield part.partition("=")[2].strip('"')


def _values(query: str) -> Iterator[str]:
    """The values of a query as they are written, as they are meant, and as they travel."""
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
    """Sends bodies to one endpoint, one after the other, over one connection; close it when done."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session = requests.Session()

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_error: object) -> None:
        self._session.close()

    def send(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a body; returns when the endpoint took it.

        Raises:
            TargetError: the endpoint refuses it for good; names status and the beginning of the answer.
            TransientTargetError: no attempt got an answer that counts.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(_PassingFault), wait=self._wait, stop=self._gives_up, reraise=True
        )
        try:
            retrying(self._attempt, body, headers)
        except _PassingFault as fault:
            attempts = retrying.statistics.get("attempt_number", 1)
            later = "" if fault.retry_after is None else f"; it asks to come back in {fault.retry_after:g} s"
            raise TransientTargetError(
                f"the endpoint did not take a request in {attempts} attempts ({fault.reason}){later}; the "
                "batch is sent again",
                url=self._endpoint.shown,
            ) from fault.__cause__

    def ask(self) -> int:
        """The status of an answer to HEAD, whatever it is; raises as ``send`` where there is none."""
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
            where = safe_url(response.headers.get("Location", "where it points"))
            raise TargetError(
                f"the endpoint answers HTTP {status}, and redirects are not followed: set target.url to "
                f"{hide(where, self._endpoint.secrets())}",
                url=self._endpoint.shown,
            )
        raise TargetError(
            f"the endpoint refuses a request with HTTP {status}{self._said(response)}: "
            f"{_REMEDIES.get(status, 'correct what it names, here or there')}",
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
                "the endpoint's certificate is not trusted: give its authority as target.tls.ca, or check "
                "the host's name",
                url=self._endpoint.shown,
            ) from error
        if isinstance(error, requests.exceptions.InvalidHeader | requests.exceptions.InvalidURL):
            raise TargetError("target.url or a header cannot be sent", url=self._endpoint.shown) from error
        if isinstance(error, requests.Timeout):
            return f"no answer within {self._endpoint.timeout:g} s; target.timeout sets how long"
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
    """Why there is no connection, by the socket's error behind a library's."""
    for cause in causes_of(error):
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, socket.gaierror):
            return "host not found"
        if isinstance(cause, ssl.SSLError):
            return "TLS failed"
    return type(error).__name__


_REMEDIES: Final = {
    401: "check target.auth",
    403: "let target.auth's user write there",
    404: "check target.url",
    405: "check target.method",
    413: "lower target.batch-rows",
    415: "check target.format",
}


def _fault(state: RetryCallState) -> _PassingFault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _PassingFault)  # noqa: S101  # the only error that is retried
    return error


IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
EPOCH_HEADER: Final = "Tidesink-Epoch"
BATCH_HEADER: Final = "Tidesink-Batch"


def request_headers(stamp: Stamp, body: bytes) -> dict[str, str]:
    """The headers of a request with this body."""
    place = orjson.dumps([stamp.pipeline, *stamp.table, stamp.batch, stamp.cut])
    return {
        IDEMPOTENCY_HEADER: hashlib.sha256(place + b"\n" + body).hexdigest(),
        EPOCH_HEADER: str(stamp.epoch),
        BATCH_HEADER: str(stamp.batch),
    }


def body_of(rows: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """The body of a request: one JSON object a line, or one array.

    Raises:
        EncodeError: a value that JSON has no form for.
    """
    try:
        if form == "array":
            return orjson.dumps(rows)
        return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    except TypeError as error:
        raise EncodeError(f"a row cannot be written as JSON: {error}") from error


@dataclass(frozen=True)
class Slices:
    """What a task does; goes to the executors as it is."""

    endpoint: Endpoint
    shape: TableShape
    stamp: Stamp
    batch_rows: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sent]:
        """Send the rows of a task, slice by slice; each is given when the endpoint took it.

        Raises:
            TargetError: a row has no key, or the endpoint refuses a slice for good.
            TransientTargetError: the endpoint did not take a slice now.
        """
        with Requests(self.endpoint) as sending:
            for rows in self._slices(batches):
                body = body_of([self._object(row) for row in rows], self.endpoint.format)
                sending.send(body, request_headers(self.stamp, body))
                deletes = sum(row.op == "delete" for row in rows)
                yield Sent(len(rows) - deletes, deletes)

    def truncate(self) -> None:
        """Send that the source emptied the table; raises as ``run``."""
        body = body_of([{**self._head("truncate"), "key": None, "after": None}], self.endpoint.format)
        with Requests(self.endpoint) as sending:
            sending.send(body, request_headers(self.stamp, body))

    def _slices(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[MessageRow]]:
        # Cut by their number alone, wherever Arrow's batches end: sent again, a slice is the same.
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
        found = {**self._head(row.op), "key": self._values(row.key), "after": after}
        if row.commit_ts is not None:
            found["commit_ts"] = row.commit_ts
        return {**found, "kept": list(row.kept)} if row.kept else found

    def _values(self, row: Row) -> dict[str, Any]:
        return {name: json_value(value, self._types.get(name)) for name, value in row.items()}

    @cached_property
    def _types(self) -> Mapping[str, ColumnType]:
        return {column.name: column.type for column in self.shape.columns if column.type.name == "float"}
