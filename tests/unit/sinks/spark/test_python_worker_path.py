"""Which archives Spark's Python workers leave out of their path."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

_SCRIPT = """
import json, sys
from pathlib import Path
from tidesink.sinks.spark.daemon import leave_archives_out
given = json.loads(sys.argv[1])
sys.path[:0] = given
leave_archives_out()
import own_helpers, py4j, pyspark
print(json.dumps([one for one in sys.path if one in given]))
"""


def test_archives_of_the_installed_pyspark_alone_are_left_out(tmp_path: Path) -> None:
    """Those of a user stay, whatever they are called, and so do those of another PySpark."""
    (home,) = pyspark.__path__
    spark = sorted(map(str, (Path(home) / "python/lib").glob("*.zip")))
    jar = str(next((Path(home) / "jars").glob("spark-core_*.jar")))
    own = tmp_path / "pyspark_helpers.zip"
    other = tmp_path / "py4j-0.10-src.zip"
    for archive, module in ((own, "own_helpers.py"), (other, "other_spark.py")):
        with zipfile.ZipFile(archive, "w") as written:
            written.writestr(module, "")
    given = [*spark, jar, str(own), str(other)]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(given)], capture_output=True, text=True, check=True
    )
    assert len(spark) == 2
    assert json.loads(done.stdout) == [str(own), str(other)]
