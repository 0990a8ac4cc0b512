"""Rows of a target to an HTTP endpoint: bodies, idempotency keys, retries, and what is refused."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import self_signed
from tests.contracts.targets_bed import progress
from tests.http_receiver import Fault, Receiver, http_receiver
from tests.unit.sinks.targets.stream.written_rows import TABLE, arrow_batch, named, shape_with
from tidesink.errors import EncodeError, TargetError, TransientTargetError
from tidesink.events import ColumnType, TableId
from tidesink.schema_registry.transport import Auth, BasicAuth, BearerAuth, TlsOptions
from tidesink.sinks.targets.stream.http_endpoint import Endpoint, Slices, table_url
from tidesink.sinks.targets.stream.table import MessageEntry, Sent, Stamp

SHAPE = shape_with(
    named("big", ColumnType("bigint unsigned")),
    named("price", ColumnType("decimal", precision=5, scale=2)),
    named("data", ColumnType("blob")),
    named("ratio", ColumnType("float")),
    named("at", ColumnType("datetime", fsp=0)),
)

# Retries wait, each for a second or so.
pytestmark = pytest.mark.slow
ENTRY = MessageEntry("shop", ("id",), epoch=1, sent_epoch=1, follows=1)
STAMP = Stamp.of(ENTRY, progress(1, 7))
ROW: dict[str, Any] = {
    "id": 1,
    "big": Decimal(2**64 - 1),
    "price": Decimal("1.50"),
    "data": b"\x00\xff",
    "ratio": 0.10000000149011612,
    "at": datetime(2024, 2, 29, 12),
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as listening:
        yield listening


def endpoint(url: str, **more: Any) -> Endpoint:
    return Endpoint(
        **{"url": f"{url}/in?t0ken", "method": "POST", "format": "json-lines", "headers": {}, **more}
    )


def slices(receiver: Receiver, batch_rows: int = 100, **more: Any) -> Slices:
    return Slices(endpoint(receiver.url, **more), SHAPE, STAMP, batch_rows)


def upserts(count: int) -> list[Any]:
    return [("upsert", {**ROW, "id": number}, {"id": number}) for number in range(count)]


def send(sending: Slices, *batches: Any, **more: Any) -> Sent:
    found = list(sending.run(arrow_batch(sending.shape, rows, **more) for rows in batches))
    return Sent(sum(one.upserts for one in found), sum(one.deletes for one in found))


@pytest.mark.parametrize("form", ["json-lines", "array"])
def test_values_are_those_of_decode(receiver: Receiver, form: str) -> None:
    rows = [("upsert", ROW, {"id": 1}), ("delete", None, {"id": 2})]
    assert send(slices(receiver, format=form), rows, _commit_ts=[4, None]) == Sent(1, 1)
    (request,) = receiver.requests
    table = {"schema": "shop", "name": "orders"}
    after = {
        "id": 1,
        "big": 2**64 - 1,
        "price": "1.50",
        "data": {"base64": "AP8="},
        "ratio": 0.1,
        "at": "2024-02-29 12:00:00",
    }
    assert request.objects == [
        {"table": table, "op": "upsert", "key": {"id": 1}, "after": after, "commit_ts": 4},
        {"table": table, "op": "delete", "key": {"id": 2}, "after": None},
    ]
    assert (request.method, request.path) == ("POST", "/in?t0ken")


def test_a_value_left_out_is_no_member(receiver: Receiver) -> None:
    send(slices(receiver), [("upsert", {**ROW, "data": None}, {"id": 1})], _kept=[["data"]])
    (one,) = receiver.requests[0].objects
    assert one["kept"] == ["data"]
    assert "data" not in one["after"]
    assert one["after"]["price"] == "1.50"


def test_slices_and_their_keys_do_not_depend_on_arrows_batches_nor_the_epoch(receiver: Receiver) -> None:
    rows = upserts(10)
    assert send(slices(receiver, 4), rows) == Sent(10, 0)
    first = [request.headers["idempotency-key"] for request in receiver.requests]
    assert [len(request.objects) for request in receiver.requests] == [4, 4, 2]
    receiver.requests.clear()
    again = replace(slices(receiver, 4), stamp=replace(STAMP, epoch=2))
    send(again, rows[:3], rows[3:9], rows[9:])
    assert [request.headers["idempotency-key"] for request in receiver.requests] == first
    assert {request.headers["tidesink-epoch"] for request in receiver.requests} == {"2"}
    assert len(set(first)) == 3
    receiver.requests.clear()
    # The same number once more, since the store was lost: older rows may have been sent between the two.
    once_more = Stamp.of(replace(ENTRY, follows=2), progress(1, 7))
    send(replace(slices(receiver, 4), stamp=once_more), rows)
    assert not set(first) & {request.headers["idempotency-key"] for request in receiver.requests}
    other = replace(slices(receiver, 4), stamp=replace(STAMP, batch=8))
    send(other, rows[:4])
    assert receiver.requests[-1].headers["idempotency-key"] not in first


def test_a_row_that_changed_and_changed_back_is_no_repetition(receiver: Receiver) -> None:
    """A batch was sent and not written down, three times, and more had come each time."""
    for end, price in ((7, "1.50"), (8, "2.50"), (9, "1.50")):
        known = replace(progress(1, 7), topics=progress(1, end).topics)
        sending = replace(slices(receiver), stamp=Stamp.of(ENTRY, known))
        send(sending, [("upsert", {**ROW, "price": Decimal(price)}, {"id": 1})])
    first, _, last = receiver.requests
    assert first.objects == last.objects
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 3


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_may_pass_is_tried_again_under_the_same_key(receiver: Receiver, status: int) -> None:
    receiver.faults = [Fault(status), Fault(status)]
    assert send(slices(receiver), upserts(2)) == Sent(2, 0)
    assert [request.status for request in receiver.requests] == [status, status, 200]
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 1


def test_an_answer_that_was_lost_does_nothing_twice(receiver: Receiver) -> None:
    receiver.faults = [Fault(502, taken=True)]
    send(slices(receiver), upserts(2))
    assert len(receiver.requests) == 2
    assert len(receiver.taken) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(receiver: Receiver, form: str) -> None:
    started = time.monotonic()  # before the date is told, which cuts the second off
    moment = datetime.now(timezone.utc) + timedelta(seconds=2)
    receiver.faults = [
        Fault(429, {"Retry-After": "1" if form == "seconds" else format_datetime(moment, usegmt=True)})
    ]
    send(slices(receiver), upserts(1))
    assert time.monotonic() - started >= (1 if form == "seconds" else 0.9)
    assert [request.status for request in receiver.requests] == [429, 200]


def test_a_long_retry_after_is_left_to_the_batch(receiver: Receiver) -> None:
    receiver.faults = [Fault(503, {"Retry-After": "3600"}, "busy")]
    with pytest.raises(TransientTargetError, match=r"HTTP 503 \(busy\).*retry in 3600 s"):
        send(slices(receiver), upserts(1))
    assert len(receiver.requests) == 1


def test_attempts_end(receiver: Receiver) -> None:
    receiver.faults = [Fault(500, {"Retry-After": "0"})] * 3
    with pytest.raises(TransientTargetError, match="3 attempts"):
        send(slices(receiver, attempts=3), upserts(1))
    assert receiver.taken == set()


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(400, "Correct"), (401, "auth"), (404, "url"), (413, "batch-rows"), (422, "Correct")],
)
def test_a_refusal_ends_the_batch_with_its_words(receiver: Receiver, status: int, remedy: str) -> None:
    receiver.faults = [Fault(status, {}, "no column\nnamed: price " + "x" * 900)]
    with pytest.raises(
        TargetError, match=rf"HTTP {status} \(no column named: price x+…\)\. .*{remedy}"
    ) as caught:
        send(slices(receiver), upserts(1))
    assert not isinstance(caught.value, TransientTargetError)
    assert len(str(caught.value)) < 500
    assert len(receiver.requests) == 1


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.faults = [Fault(307, {"Location": "http://elsewhere.example/in?token=1"})]
    with pytest.raises(
        TargetError, match=r"redirects are not followed. Set target.url to http://elsewhere.example/in\.$"
    ):
        send(slices(receiver, auth=BearerAuth("s3cr3t")), upserts(1))
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("auth", "header"),
    [(BasicAuth("me", "pässword"), "Basic bWU6cMOkc3N3b3Jk"), (BearerAuth("s3cr3t"), "Bearer s3cr3t")],
)
def test_requests_are_signed_and_secrets_never_shown(receiver: Receiver, auth: Auth, header: str) -> None:
    receiver.faults = [Fault(400, {}, f"you sent {header}, k3y and t0ken")]
    sending = slices(receiver, auth=auth, headers={"X-Api-Key": "k3y"})
    with pytest.raises(TargetError) as caught:
        send(sending, upserts(1))
    assert receiver.requests[0].headers["authorization"] == header
    assert receiver.requests[0].headers["x-api-key"] == "k3y"
    assert receiver.requests[0].path == "/in?t0ken"
    for text in (str(caught.value), repr(sending)):
        assert not [secret for secret in ("k3y", "s3cr3t", "bWU6", "pässword", "t0ken") if secret in text]


QUERY = "sig=s%2Fg%2Bn+ature&v=2&opaque"


@pytest.mark.parametrize(
    "echo",
    [
        "t0k3nvalue",
        "c00kievalue",
        "s%2Fg%2Bn+ature",
        "s/g+n ature",
        "s%2Fg%2Bn%20ature",
        "opaque",
        QUERY,
        "k3y",
    ],
)
@pytest.mark.parametrize("status", [400, 308])
def test_secrets_are_hidden_in_whatever_form_an_answer_repeats_them(
    receiver: Receiver, echo: str, status: int
) -> None:
    headers = {"X-Auth": "Token t0k3nvalue", "Cookie": 'a=1; session="c00kievalue"', "X-Key": "k3y"}
    reported = {"Location": f"http://h/{echo}"} if status == 308 and "&" not in echo else {}
    receiver.faults = [Fault(status, reported, f"v 2 refused: Invalid Token: {echo} for you")]
    sending = Slices(
        Endpoint(f"{receiver.url}/in?{QUERY}", "POST", "json-lines", headers), SHAPE, STAMP, batch_rows=5
    )
    with pytest.raises(TargetError) as caught:
        send(sending, upserts(1))
    assert echo not in str(caught.value)
    if status == 400:
        assert "v 2 refused: Invalid Token: *** for you" in str(caught.value)


def test_nobody_listening_may_pass() -> None:
    with http_receiver() as gone:
        pass
    with pytest.raises(TransientTargetError, match=r"2 attempts.*no connection"):
        send(slices(gone, attempts=2), upserts(1))


def test_no_answer_in_time_may_pass(receiver: Receiver) -> None:
    with receiver.lock, pytest.raises(TransientTargetError, match=r"no answer within 0\.2 s"):
        send(slices(receiver, attempts=1, timeout=0.2), upserts(1))


def test_a_certificate_is_checked(tmp_path: Path) -> None:
    pem = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with http_receiver(context) as listening:
        with pytest.raises(TargetError, match=r"target\.tls\.ca"):
            send(slices(listening), upserts(1))
        assert send(slices(listening, tls=TlsOptions(ca=pem)), upserts(1)) == Sent(1, 0)


def test_a_row_without_a_key_is_refused(receiver: Receiver) -> None:
    with pytest.raises(EncodeError, match="would not identify a row"):
        send(slices(receiver), [("upsert", {**ROW, "id": None}, {"id": None})])
    assert receiver.requests == []


def test_a_truncate_is_one_request(receiver: Receiver) -> None:
    send(slices(receiver), upserts(3))
    slices(receiver).truncate()
    assert receiver.objects(TABLE) == []
    assert [one["op"] for one in receiver.requests[-1].objects] == ["truncate"]


@pytest.mark.parametrize(
    ("table", "url"),
    [
        (TableId("shop", "orders"), "http://h/shop/orders?t=orders"),
        (TableId("a/b", "ü ?#"), "http://h/a%2Fb/%C3%BC%20%3F%23?t=%C3%BC%20%3F%23"),
        (TableId("..", "."), "http://h/~~/~?t=~"),
        (TableId("{table}", "x"), "http://h/%7Btable%7D/x?t=x"),
    ],
)
def test_names_are_quoted_in_the_url(table: TableId, url: str) -> None:
    assert table_url("http://h/{schema}/{table}?t={table}", table) == url
