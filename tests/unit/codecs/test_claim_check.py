"""Claim check: which files are opened, and which never."""

from __future__ import annotations

import base64
import json
import os
import random
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.unit.codecs.canal_json.messages import message_of, row_bytes, row_message
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.compression import Compression, compressed, decompressed
from tidesink.codecs.large_messages import name_under, open_claim_check
from tidesink.codecs.options import CanalJsonOptions
from tidesink.errors import ConfigError, EncodeError, RowUnavailableError, SchemaMismatchError
from tidesink.events import ChangeEvent

TS: Final = 470608475564539905
# Hexadecimal digits of no pattern: compressed they take half their room.
LONG: Final = random.Random(3).randbytes(450).hex()
NAME: Final = f"{uuid.UUID(int=5, version=4)}.json"
WHOLE: Final = {"id": "1", "a": LONG}


def _shown(value: object) -> str:
    # A slash would make it one of the golden cases in the run's summary.
    return str(value)[:40].replace("/", "|")


def _options(root: object, **more: Any) -> CanalJsonOptions:
    return CanalJsonOptions(enable_tidb_extension=True, claim_check_storage_uri=str(root), **more)


def _pointer(location: str, **members: Any) -> bytes:
    return row_bytes({}, **{"_tidb": {"commitTs": TS, "claimCheckLocation": location}, **members})


def _whole(**members: Any) -> bytes:
    return row_bytes(WHOLE, **{"_tidb": {"commitTs": TS}, **members})


def _enveloped(value: bytes) -> bytes:
    return json.dumps({"key": None, "value": base64.b64encode(value).decode()}).encode()


def _after(root: object, location: str) -> Any:
    (event,) = CanalJsonCodec(options=_options(root)).decode(message_of(_pointer(location)))
    assert isinstance(event, ChangeEvent)
    return event.after


@pytest.mark.parametrize("kind", ["none", "snappy", "lz4"])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    "form", ["file://{root}/{name}", "file:{root}/{name}", "{root}/{name}", "file:///data/elsewhere/{name}"]
)
def test_a_file_of_each_form_is_read(tmp_path: Path, kind: Compression, raw: bool, form: str) -> None:
    """Also by the file's name alone, where the producer has the storage elsewhere: TiCDC's consumer too."""
    value = compressed(_whole(), kind)
    (tmp_path / NAME).write_bytes(value if raw else _enveloped(value))
    location = form.format(root=tmp_path, name=NAME)
    assert _after(tmp_path, location) == {"id": 1, "a": LONG}
    assert _after(f"file://{tmp_path}", location) == {"id": 1, "a": LONG}


def test_the_message_that_points_may_be_compressed_too(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(_enveloped(compressed(_whole(), "snappy")))
    codec = CanalJsonCodec(options=_options(tmp_path))
    (event,) = codec.decode(message_of(compressed(_pointer(f"file://{tmp_path}/{NAME}"), "snappy")))
    assert isinstance(event, ChangeEvent)
    assert event.after == {"id": 1, "a": LONG}
    assert "_tidb" not in (event.extension or {})


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("file:///etc/passwd", "is outside"),
        ("/etc/passwd", "is outside"),
        ("file:///claims/../etc/passwd", "not a path that TiCDC writes"),
        ("file:///claims/a/../../secret.json", "not a path that TiCDC writes"),
        (f"file:///claims/./{NAME}", "not a path that TiCDC writes"),
        ("file:///claims/%2e%2e/secret.json", "a name that TiCDC does not write"),
        ("file:///claims/..\\secret.json", "not a path that TiCDC writes"),
        ("file:///claims/a\0.json", "not a path that TiCDC writes"),
        ("file:///claims/-\n.json", "not a path that TiCDC writes"),
        ("file:///claims", "is outside"),
        ("file:///claims/", "is outside"),
        ("file:///claimsecret/x.json", "is outside"),
        ("..", "not a path that TiCDC writes"),
        ("file:", "not a path that TiCDC writes"),
        (f"s3://bucket/{NAME}", "not in a storage of type file"),
        (f"http://169.254.169.254/{NAME}", "not in a storage of type file"),
        (f"file:///claims/{NAME}?x=1", "not a path that TiCDC writes"),
        (f"file:///claims/{NAME}#x", "not a path that TiCDC writes"),
        ("file://[::1", "is not a valid location"),
        ("file:///claims/" + "a" * 5000, "is too long"),
    ],
    ids=_shown,
)
def test_nothing_outside_of_the_root_is_opened(location: str, says: str) -> None:
    with pytest.raises(RowUnavailableError, match=says):
        name_under("file:///claims", location)


@pytest.mark.parametrize(
    ("location", "says"),
    [
        (f"s3://other/claims/{NAME}", "a different bucket"),
        (f"gs://bucket/claims/{NAME}", "not in a storage of type s3"),
        (f"file:///bucket/claims/{NAME}", "not in a storage of type s3"),
        (f"/bucket/claims/{NAME}", "not in a storage of type s3"),
        ("s3://bucket/other/secret.json", "is outside"),
        (f"s3://user:pass@bucket/claims/{NAME}", "a different bucket"),
    ],
    ids=_shown,
)
def test_nothing_of_another_bucket_is_opened(location: str, says: str) -> None:
    with pytest.raises(RowUnavailableError, match=says):
        name_under("s3://bucket/claims", location)


@pytest.mark.parametrize(
    ("root", "location", "name"),
    [
        ("file:///claims", "file:///claims/one.json", "one.json"),
        ("file:///claims", "file:/claims/feed/one.json", "feed/one.json"),
        ("s3://bucket/claims", f"s3:/bucket/claims/{NAME}", NAME),
        ("s3a://bucket/claims", f"s3://bucket/claims/{NAME}", NAME),
        ("s3://bucket/claims", f"s3://bucket/{NAME}", NAME),
        ("s3://bucket", f"s3://bucket/{NAME}", NAME),
    ],
    ids=_shown,
)
def test_what_lies_under_the_root_is_found(root: str, location: str, name: str) -> None:
    assert name_under(root, location) == name


def test_links_and_pipes_are_no_files(tmp_path: Path) -> None:
    root, outside = tmp_path / "claims", tmp_path / "secret"
    root.mkdir()
    outside.mkdir()
    (outside / NAME).write_bytes(_enveloped(_whole()))
    (root / NAME).symlink_to(outside / NAME)
    (root / "feed").symlink_to(outside)
    for name in (NAME, f"feed/{NAME}"):
        with pytest.raises(RowUnavailableError, match="symbolic link"):
            _after(root, f"file://{root}/{name}")
    os.mkfifo(root / "pipe.json")
    with pytest.raises(RowUnavailableError, match="not a regular file"):
        _after(root, f"file://{root}/pipe.json")
    (root / "folder.json").mkdir()
    with pytest.raises(RowUnavailableError, match=r"no claim-check file|not a regular file"):
        _after(root, f"file://{root}/folder.json")


def test_a_root_that_is_a_link_itself_is_the_users_own_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "claims").symlink_to(tmp_path / "real")
    (tmp_path / "real" / NAME).write_bytes(_enveloped(_whole()))
    assert _after(tmp_path / "claims", f"file://{tmp_path}/claims/{NAME}")["id"] == 1


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(RowUnavailableError, match=r"has no claim-check file .* was removed"):
        _after(tmp_path, f"file://{tmp_path}/{NAME}")


def test_a_file_is_not_taken_in_beyond_the_limit(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"{" * 5000)
    codec = CanalJsonCodec(options=_options(tmp_path, max_decompressed_bytes=1000))
    with pytest.raises(RowUnavailableError, match=r"larger than 1397 bytes\. Raise max-decompressed-bytes"):
        codec.decode(message_of(_pointer(f"file://{tmp_path}/{NAME}")))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "does not contain a canal-json message"),
        (b"{", "is not JSON"),
        (b"text", "does not contain a canal-json message"),
        (b'{"key":null,"value":"%%%"}', "not base64"),
        (b'{"key":null,"value":5}', "not base64"),
        (b'{"key":null,"value":null}', "not base64"),
        (_enveloped(b"[]"), "a different message"),
        (_enveloped(b"12"), "a different message"),
        (_whole(database="other"), "a different message"),
        (_whole(table="other"), "a different message"),
        (_whole(type="DELETE"), "a different message"),
        (_whole(_tidb={"commitTs": TS + 1}), "a different message"),
        (_whole(_tidb=None), "a different message"),
        (_whole(data=[]), "a different message"),
        (_whole(data=[{"id": "2", "a": "x"}]), "a different message"),
        (_pointer(f"file:///claims/{NAME}"), "a different message"),
        (_whole(_tidb={"commitTs": TS, "onlyHandleKey": True}), "a different message"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(SchemaMismatchError, match=says):
        _after(tmp_path, f"file://{tmp_path}/{NAME}")


def test_other_storage_is_read_through_fsspec() -> None:
    root = f"bucket{uuid.uuid4().hex}/claims"
    fsspec.filesystem("memory").pipe_file(f"{root}/{NAME}", _enveloped(_whole()))
    assert _after(f"memory://{root}", f"memory:/{root}/{NAME}")["id"] == 1
    with pytest.raises(RowUnavailableError, match="has no claim-check file"):
        _after(f"memory://{root}", f"memory://{root}/gone.json")
    claims = open_claim_check(f"memory://{root}")
    location = claims.new_location()
    claims.store(location, b"value")
    assert claims.value(location) == b"value"


class RecordingS3(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """An S3 in memory that keeps what it was opened with."""

    protocol = "s3"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    opened_with: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.opened_with.append(options)


@pytest.fixture
def s3() -> Iterator[list[dict[str, Any]]]:
    """What S3 is opened with, where fsspec's own needs a library that is not here."""
    fsspec.register_implementation("s3", RecordingS3, clobber=True)
    yield RecordingS3.opened_with
    RecordingS3.clear_instance_cache()
    sys.modules["fsspec.registry"]._registry.pop("s3")


def test_an_s3_uri_of_ticdc_is_understood(s3: list[dict[str, Any]]) -> None:
    given = "access-key=AK&secret-access-key=SECRET&session-token=T&endpoint=http://minio:9000&region=eu-1"
    root = f"bucket{uuid.uuid4().hex}/claims"
    claims = open_claim_check(f"s3://{root}/?{given}&force-path-style=true")
    assert s3[-1] == {
        "key": "AK",
        "secret": "SECRET",
        "token": "T",
        "client_kwargs": {"endpoint_url": "http://minio:9000", "region_name": "eu-1"},
    }
    location = claims.new_location()
    assert location.startswith(f"s3://{root}/")
    claims.store(location, _whole())
    assert claims.value(location.replace("s3://", "s3:/")) == _whole()
    assert open_claim_check(f"s3a://{root}").value(location) == _whole()
    assert s3[-1] == {}


@pytest.mark.parametrize(
    "uri", ["nowhere://bucket/x", "s3://bucket/claims?access-key=AK&secret-access-key=SECRET"], ids=_shown
)
def test_a_storage_that_cannot_be_opened_is_told_without_its_secrets(uri: str) -> None:
    with pytest.raises(ConfigError, match="fsspec") as caught:
        open_claim_check(uri)
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in repr(_options(uri))


def _changes(options: CanalJsonOptions) -> tuple[CanalJsonCodec, ChangeEvent]:
    codec = CanalJsonCodec(options=options, clock=lambda: 0)
    (event,) = CanalJsonCodec().decode(message_of(_whole()))
    assert isinstance(event, ChangeEvent)
    return codec, event


@pytest.mark.parametrize("kind", ["none", "snappy", "lz4"])
@pytest.mark.parametrize("raw", [False, True])
def test_a_row_too_large_is_written_to_a_file_and_read_again(
    tmp_path: Path, kind: Compression, raw: bool
) -> None:
    options = _options(
        tmp_path / "made" / "for it",
        large_message_handle_option="claim-check",
        large_message_handle_compression=kind,
        claim_check_raw_value=raw,
        max_message_bytes=500,
    )
    codec, event = _changes(options)
    sent = codec.encode(event, topic="t")
    assert sent is not None
    assert sent.value is not None
    value = decompressed(sent.value) or sent.value
    members = json.loads(value)
    (path,) = (tmp_path / "made" / "for it").iterdir()
    assert members["_tidb"] == {"commitTs": TS, "claimCheckLocation": f"file://{path}"}
    assert members["data"] == [{"id": "1"}]
    assert uuid.UUID(path.stem).version == 4
    data = path.read_bytes()
    inside = data if raw else base64.b64decode(json.loads(data)["value"])
    assert json.loads(decompressed(inside) or inside)["data"] == [WHOLE]
    (again,) = codec.decode(message_of(sent.value))
    assert isinstance(again, ChangeEvent)
    assert (again.after, again.extension) == (event.after, event.extension)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"large_message_handle_option": "none"},
            r"has 1[0-9]+ bytes, max-message-bytes is 300 and large-message-handle-option is none",
        ),
        (
            {"large_message_handle_option": "claim-check", "claim_check_storage_uri": ""},
            "claim-check-storage-uri",
        ),
        (
            {"large_message_handle_option": "handle-key-only", "max_message_bytes": 200},
            "It is too large even with only the columns of the row's handle key",
        ),
        (
            {"large_message_handle_option": "handle-key-only", "enable_tidb_extension": False},
            "handle-key-only needs enable-tidb-extension",
        ),
    ],
)
def test_what_cannot_be_sent_says_size_and_option(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    given = {
        "enable_tidb_extension": True,
        "claim_check_storage_uri": str(tmp_path),
        "max_message_bytes": 300,
    }
    codec, event = _changes(CanalJsonOptions(**{**given, **more}))
    with pytest.raises(EncodeError, match=says):
        codec.encode(event, topic="t")
    assert list(tmp_path.iterdir()) == []


def test_a_row_without_a_handle_key_cannot_be_cut_down() -> None:
    options = _options("", large_message_handle_option="handle-key-only", max_message_bytes=300)
    (event,) = CanalJsonCodec().decode(message_of(json.dumps(row_message(WHOLE, pkNames=[])).encode()))
    assert isinstance(event, ChangeEvent)
    with pytest.raises(EncodeError, match="needs a handle key"):
        CanalJsonCodec(options=options).encode(event._replace(commit_ts=TS), topic="t")
