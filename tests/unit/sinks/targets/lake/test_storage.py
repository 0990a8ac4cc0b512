"""Files of a lake in a bucket, against a server of the S3 protocol, and settings of Iceberg's S3FileIO."""

from __future__ import annotations

import pickle

import pytest

from tests.s3_server import FOLDER, S3Bucket
from tidesink.dev.stack import free_ports
from tidesink.errors import TargetError, TransientTargetError
from tidesink.sinks.targets.lake.storage import (
    LOCAL,
    Bucket,
    Storage,
    StorageError,
    iceberg_storage,
    open_storage,
)


def test_objects_have_the_names_of_their_locations(s3_bucket: S3Bucket) -> None:
    storage = pickle.loads(pickle.dumps(Storage(s3_bucket.bucket())))  # noqa: S301  (made here)
    place = f"s3a://{s3_bucket.name}/{FOLDER}"
    for size, name in ((3, "small"), (11 << 20, "in several parts")):
        with storage.writing(f"{place}/{name}") as out:
            out.write(b"x" * size)
            assert out.tell() == size
    assert s3_bucket.keys() == [f"{FOLDER}/in several parts", f"{FOLDER}/small"]
    with storage.reading(f"{place}/small") as file:
        assert file.read_at(10, 1) == b"xx"
    assert storage.reason_unreachable(place) is None


def test_files_are_looked_at_in_their_order() -> None:
    storage = Storage(Bucket("b", "r", "k", "s"))
    assert storage.each(lambda at: at * 2, range(40)) == [at * 2 for at in range(40)]


def test_errors_say_whether_to_try_again_and_no_secret(s3_endpoint: str) -> None:
    missing = S3Bucket(s3_endpoint)
    location = f"s3a://{missing.name}/a/b.parquet"
    with (
        pytest.raises(TargetError, match="NO_SUCH_BUCKET") as found,
        Storage(missing.bucket()).writing(location) as out,
    ):
        out.write(b"x")
    assert type(found.value) is TargetError
    assert missing.secret_key not in str(found.value)
    with (
        pytest.raises(TransientTargetError, match="does not exist"),
        Storage(missing.bucket()).reading(location),
    ):
        pass


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_a_reason_for_merge() -> None:
    away = S3Bucket(f"http://127.0.0.1:{free_ports(1)[0]}")
    storage, location = Storage(away.bucket()), f"s3a://{away.name}/lake"
    with pytest.raises(StorageError), storage.reading(f"{location}/a.parquet"):
        pass
    reason = storage.reason_unreachable(location)
    assert str(reason).startswith(f"Python cannot reach {location} (")
    assert storage.reason_unreachable(location) == reason  # at once


def test_a_bucket_that_is_left_to_spark_is_tried_again(s3_bucket: S3Bucket) -> None:
    storage, location = Storage(s3_bucket.bucket()), f"s3a://{s3_bucket.name}/lake"
    assert storage.reason_unreachable(location) is None
    assert storage.leave(StorageError("too slow")) == "too slow" == storage.reason_unreachable(location)
    assert storage.reason_unreachable(location, try_again_after=-1.0) is None


def test_a_history_waits_where_other_tables_are_merged() -> None:
    def failing() -> Storage:
        raise StorageError("no answer")

    away = Storage(Bucket("left to spark", "r", "k", "s"))
    reason = away.leave(StorageError("too slow"))
    assert open_storage(lambda: away, "s3a://left/x", merges=True) == reason
    assert open_storage(lambda: away, "s3a://left/x", merges=False) is away
    assert open_storage(failing, "s3a://left/x", merges=True) == "no answer"
    with pytest.raises(StorageError, match="no answer"):
        open_storage(failing, "s3a://left/x", merges=False)
    for merges in (True, False):
        assert open_storage(lambda: "only Spark", "s3a://left/x", merges=merges) == "only Spark"


def test_what_a_storage_holds() -> None:
    storage = Storage(Bucket("lake", "r", "k", "s"))
    inside = ("s3a://lake/a", "s3://lake/a/b c%20", "s3n://lake/a")
    outside = ("s3a://other/a", "s3a://lake/a//b", "gs://lake/a", "file:/lake/a", "/lake/a", "a")
    assert [storage.holds(one) for one in (*inside, *outside)] == [True] * 3 + [False] * 6
    assert [LOCAL.holds(one) for one in ("/a", "file:/a", "s3a://lake/a")] == [True, True, False]


S3_FILE_IO = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "client.region": "r"}


def test_settings_of_icebergs_own_client() -> None:
    place = "s3://lake/warehouse"
    assert iceberg_storage(place, {**S3_FILE_IO, "warehouse": place}) == Storage(
        Bucket("lake", "r", "k", "s")
    )
    more = {"s3.session-token": "t", "s3.endpoint": "http://h:1", "s3.path-style-access": "true"}
    assert iceberg_storage(place, {**S3_FILE_IO, **more}) == Storage(
        Bucket("lake", "r", "k", "s", session_token="t", endpoint="http://h:1", path_style=True)
    )


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({}, "no s3.access-key-id"),
        ({**S3_FILE_IO, "s3.sse.type": "kms"}, "s3.sse.type"),
        ({**S3_FILE_IO, "client.assume-role.arn": "arn"}, "client.assume-role.arn"),
        ({**S3_FILE_IO, "s3.remote-signing-enabled": "true"}, "s3.remote-signing-enabled"),
        ({**S3_FILE_IO, "s3.path-style-access": "true"}, "without an endpoint"),
    ],
)
def test_settings_that_are_left_to_spark(properties: dict[str, str], reason: str) -> None:
    found = iceberg_storage("s3://lake/x", properties)
    assert isinstance(found, str)
    assert reason in found


def test_a_file_that_is_not_there_is_the_systems_error_on_a_disk() -> None:
    with pytest.raises(FileNotFoundError), LOCAL.reading("/no/such/file"):
        pass
