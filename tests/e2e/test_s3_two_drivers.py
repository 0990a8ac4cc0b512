"""Why a lake on S3 is refused that has no log store with exclusion: two drivers make one version at once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from tests.full import FULL
from tests.s3_server import S3Bucket

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_SECONDS: Final = 240
_ROOT: Final = Path(__file__).parents[2]
_LOG: Final = "t/_delta_log"
_SCHEMA: Final = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
}
_FIRST_VERSION: Final = (
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "0c5bd3f1-6a1e-4ad5-9bd5-4b8d0a0f7c11",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(_SCHEMA),
            "partitionColumns": [],
            "configuration": {},
            "createdTime": 0,
        }
    },
)


class _S3:
    """S3, where the write of a table's version 1 goes on only once two ask for it."""

    def __init__(self) -> None:
        self._served = DomainDispatcherApplication(create_backend_app)
        self._both = threading.Barrier(2)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith(_version(1)):
            self._both.wait(_SECONDS)
        answer: Iterable[bytes] = self._served(environ, start_response)
        return answer


def _version(number: int) -> str:
    return f"{_LOG}/{number:020}.json"


@contextmanager
def _served() -> Iterator[str]:
    server = make_server("127.0.0.1", 0, _S3(), threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _driver(bucket: S3Bucket, row: int) -> subprocess.Popen[bytes]:
    settings = {f"spark.hadoop.fs.s3a.{name}": value for name, value in bucket.hadoop_settings().items()}
    asked = {"path": f"s3a://{bucket.name}/t", "row": row, "conf": settings}
    return subprocess.Popen([sys.executable, "-m", "tests.delta_driver", json.dumps(asked)], cwd=_ROOT)


@FULL
def test_of_two_commits_of_one_version_at_once_one_is_lost(kept_classes: bool) -> None:
    """By Delta's own log store of S3 both succeed, and the table has one of them."""
    with _served() as endpoint:
        bucket = S3Bucket(endpoint)
        bucket.create()
        files = bucket.bucket().filesystem()
        with files.open_output_stream(f"{bucket.name}/{_version(0)}") as first:
            first.write("\n".join(map(json.dumps, _FIRST_VERSION)).encode())
        with ExitStack() as running:
            drivers = [running.enter_context(_driver(bucket, row)) for row in (1, 2)]
            for driver in drivers:
                running.callback(driver.kill)
            assert [driver.wait(_SECONDS) for driver in drivers] == [0, 0]
        keys = bucket.keys()
        assert [key for key in keys if key.endswith(".json")] == [_version(0), _version(1)]
        with files.open_input_stream(f"{bucket.name}/{_version(1)}") as second:
            actions: list[dict[str, Any]] = [json.loads(line) for line in second.read().splitlines()]
    added = [f"t/{action['add']['path']}" for action in actions if "add" in action]
    written = [key for key in keys if key.endswith(".parquet")]
    assert (len(added), len(written)) == (1, 2)
    assert set(added) < set(written)
