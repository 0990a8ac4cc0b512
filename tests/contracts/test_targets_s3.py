"""Lakes in a bucket, by Hadoop's S3A: batches are files there too, and what S3A does otherwise is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from tests.contracts.delta_beds import delta_bed_in
from tests.contracts.iceberg_beds import iceberg_bed_in, iceberg_jdbc_bed_in, jdbc_catalog
from tests.contracts.lake_writers import with_writers
from tests.contracts.targets_bed import Bed, merged, progress, row, shape, sql
from tests.full import FULL, each
from tests.s3_server import FOLDER, REGION, S3Bucket
from tests.sessions import hadoop_settings
from tidesink.errors import StaleProgressError
from tidesink.sinks.spark.java_names import java_names
from tidesink.sinks.targets.base import ApplyHooks
from tidesink.sinks.targets.delta.table import DeltaTable
from tidesink.sinks.targets.iceberg.table import IcebergTable
from tidesink.sinks.targets.lake.files import FILE_DDL, NewFiles, RowsTask
from tidesink.sinks.targets.lake.rows import RowRules
from tidesink.sinks.targets.lake.storage import Storage, StorageError, hadoop_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = shape()
KINDS = ("delta", "iceberg")
LakeTable = DeltaTable | IcebergTable


def bed_at(kind: str, spark: Any, place: str) -> Bed:
    """A lake of a kind whose tables are below a place."""
    return (
        delta_bed_in(spark, place)
        if kind == "delta"
        else iceberg_bed_in(spark, {"type": "hadoop", "warehouse": place})
    )


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, s3_bucket: S3Bucket) -> Bed:
    """An empty lake in a bucket, in a folder with a name that URLs encode."""
    spark = request.getfixturevalue("spark")
    s3_bucket.known_to(spark)
    return bed_at(request.param, spark, f"s3a://{s3_bucket.name}/{FOLDER}")


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    """The same on a disk."""
    return bed_at(request.param, request.getfixturevalue("spark"), str(tmp_path / FOLDER))


def opened(bed: Bed) -> LakeTable:
    """The table as a worker opens it."""
    table = bed.reopen().open_table(SHAPE, pipeline="shop")
    assert isinstance(table, DeltaTable | IcebergTable)
    return table


def loaded(bed: Bed) -> LakeTable:
    """A claimed table with two batches, which were written as files."""
    table = opened(bed)
    epoch = table.claim().epoch
    table.apply(bed.batch(SHAPE, [row(1), row(2), row(3)]), progress(epoch, 1))
    result = table.apply(bed.batch(SHAPE, [row(2, "b"), row(4)], [{"id": 1}, {"id": 9}]), progress(epoch, 2))
    assert bed.did(result, (1, 1, 1, 1))
    assert table._files_or_merge.reason is None
    return table


def data_files(bed: Bed, table: LakeTable) -> set[str]:
    """The keys of the table's data files, as its log has them."""
    if isinstance(table, IcebergTable):
        found = sql(bed, f"SELECT file_path FROM {table.location}.all_files")  # noqa: S608
        return {one["file_path"].split("/", 3)[3] for one in found}
    names = sql(bed, f"SELECT _metadata.file_path FROM {table.location}")  # noqa: S608
    return {unquote(one["file_path"]).split("/", 3)[3] for one in names}


def test_batches_are_files_in_a_bucket(lake: Bed, s3_bucket: S3Bucket) -> None:
    table = loaded(lake)
    assert lake.rows() == [row(2, "b"), row(3), row(4)]
    assert table.committed() == progress(1, 2)
    known = data_files(lake, table)
    assert known
    assert all(key.startswith(f"{FOLDER}/") for key in known)
    assert known <= set(s3_bucket.keys())


@FULL
def test_files_and_merges_know_what_the_other_deleted(lake: Bed) -> None:
    table = loaded(lake)
    table.apply(merged(lake.batch(SHAPE, [row(3, "c")], [{"id": 4}])), progress(1, 3))
    table.apply(lake.batch(SHAPE, [row(2, "d"), row(4, "e")], [{"id": 3}]), progress(1, 4))
    assert lake.rows() == [row(2, "d"), row(4, "e")]
    assert opened(lake).committed() == progress(1, 4)


def test_batches_are_files_in_a_folder_whose_name_urls_encode(disk: Bed, tmp_path: Path) -> None:
    table = loaded(disk)
    table.apply(disk.batch(SHAPE, [row(4, "c")], [{"id": 3}]), progress(1, 3))
    assert table._files_or_merge.reason is None
    assert disk.rows() == [row(2, "b"), row(4, "c")]
    assert [one.name for one in tmp_path.iterdir()] == [FOLDER]


@pytest.mark.parametrize("lake", each(KINDS, full=["iceberg"]), indirect=True)
def test_a_worker_whose_table_was_claimed_writes_nothing(lake: Bed) -> None:
    table, other = loaded(lake), opened(lake)
    other.claim()
    with pytest.raises(StaleProgressError):
        table.apply(lake.batch(SHAPE, [row(5)]), progress(1, 3))
    other.apply(lake.batch(SHAPE, [row(6)]), progress(2, 3))
    assert [one["id"] for one in lake.rows()] == [2, 3, 4, 6]


@FULL
def test_batches_are_files_by_icebergs_own_client(
    request: pytest.FixtureRequest, s3_bucket: S3Bucket, tmp_path: Path
) -> None:
    catalog = {
        **jdbc_catalog(tmp_path),
        "warehouse": f"s3://{s3_bucket.name}/{FOLDER}",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": REGION,
        "s3.endpoint": s3_bucket.endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": s3_bucket.access_key,
        "s3.secret-access-key": s3_bucket.secret_key,
    }
    bed = iceberg_jdbc_bed_in(request.getfixturevalue("spark"), catalog)
    table = loaded(bed)
    assert bed.rows() == [row(2, "b"), row(3), row(4)]
    assert data_files(bed, table) <= set(s3_bucket.keys())


def test_files_of_a_commit_that_was_refused_are_removed(lake: Bed, s3_bucket: S3Bucket) -> None:
    table = loaded(lake)
    before = set(s3_bucket.keys())
    written: list[set[str]] = []

    def disturb() -> None:
        if not written:
            written.append(
                {key for key in set(s3_bucket.keys()) - before if key.endswith(("parquet", "bin"))}
            )
            sql(lake, f"DELETE FROM {table.location} WHERE id = 3")  # noqa: S608

    batch = replace(lake.batch(SHAPE, [row(2, "new"), row(7)]), hooks=ApplyHooks(on_staged=disturb))
    assert lake.did(table.apply(batch, progress(1, 3)), (1, 1, 0, 0))
    assert len(written[0]) == 2
    assert not written[0] & set(s3_bucket.keys())
    assert lake.rows() == [row(2, "new"), row(4), row(7)]


@dataclass
class Unanswered:
    """A table's writer of files, which reaches no bucket while ``silent``."""

    writer: Any
    silent: bool = False

    def stage(self, *given: Any) -> Any:
        """The writer's files."""
        if self.silent:
            raise StorageError("no answer")
        return self.writer.stage(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)


@pytest.mark.parametrize("lake", each(KINDS, full=["delta"]), indirect=True)
def test_a_batch_that_python_cannot_write_is_merged(lake: Bed) -> None:
    writers = list[Unanswered]()

    def made(writer: Any) -> Unanswered:
        writers.append(Unanswered(writer))
        return writers[-1]

    table = loaded(with_writers(lake, made))
    (writer,) = writers
    writer.silent = True
    result = table.apply(lake.batch(SHAPE, [row(2, "c"), row(8)]), progress(1, 3))
    writer.silent = False
    assert lake.did(result, (1, 1, 0, 0))
    table.apply(lake.batch(SHAPE, [row(9)]), progress(1, 4))
    assert table._files_or_merge.reason == "no answer"
    assert [one["id"] for one in lake.rows()] == [2, 3, 4, 8, 9]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("encryption.algorithm", "SSE-KMS"),
        ("requester.pays.enabled", "true"),
        ("proxy.host", "proxy.example.com"),
        ("acl.default", "BucketOwnerFullControl"),
    ],
)
def test_what_python_would_do_otherwise_is_left_to_spark(
    spark: SparkSession, s3_endpoint: str, setting: str, value: str
) -> None:
    here = S3Bucket(s3_endpoint)
    here.known_to(spark, **{setting: value})
    found = hadoop_storage(f"s3a://{here.name}/lake", lambda: hadoop_settings(spark), java_names(spark))
    assert found == f"fs.s3a.{setting} is set for s3a://{here.name}/lake"


def test_a_bucket_is_opened_as_hadoop_opens_it(spark: SparkSession, s3_endpoint: str) -> None:
    """With the credentials that its provider gives, whatever provider that is."""
    here = S3Bucket(s3_endpoint)
    provider = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    here.known_to(spark, **{"aws.credentials.provider": provider, "session.token": "the-token"})
    place = f"s3a://{here.name}/{FOLDER}"
    found = hadoop_storage(place, lambda: hadoop_settings(spark), java_names(spark))
    assert found == Storage(here.bucket(session_token="the-token"))
    assert isinstance(found, Storage)
    assert found.holds(f"{place}/a.parquet")
    shown = repr(RowsTask((), NewFiles(place, "zstd", storage=found), RowRules()))
    assert not any(secret in shown for secret in (here.access_key, here.secret_key, "the-token"))


def test_no_secret_is_in_a_plan_of_spark(spark: SparkSession, s3_bucket: S3Bucket) -> None:
    task = RowsTask((), NewFiles("s3a://b/x", "zstd", storage=Storage(s3_bucket.bucket())), RowRules())
    java: Any = spark.range(1).mapInArrow(task, FILE_DDL)
    plan = java._jdf.queryExecution()
    assert "RowsTask" in plan.toString()
    assert s3_bucket.secret_key not in plan.toString() + plan.logical().toJSON()
