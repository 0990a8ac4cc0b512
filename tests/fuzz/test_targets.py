"""Each reader of bytes from outside under atheris, for ``TIDESINK_FUZZ_INPUTS`` inputs (default 2000)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.fuzz.inputs import mutated, packed, unpacked
from tests.fuzz.targets import TARGETS

INPUTS: Final = int(os.environ.get("TIDESINK_FUZZ_INPUTS", "2000"))
ROOT: Final = Path(__file__).parents[2]
_NO_ATHERIS: Final = importlib.util.find_spec("atheris") is None


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_keeps_the_rules(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    assert len(seeds) > 40
    for seed in seeds:
        target.run(seed)


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.halves])
def test_changed_seeds_keep_the_rules(name: str) -> None:
    """The changes that atheris makes of JSON, without it: what every run of the tests can have."""
    target, chance = TARGETS[name], Random(7)
    seeds = list(target.seeds())
    for seed in range(200):
        target.run(mutated(chance.choice(seeds), 1 << 15, seed, _cut))


def _cut(data: bytes, most: int) -> bytes:
    return data[: min(most, len(data) * 2 // 3)]


@pytest.mark.slow
@pytest.mark.skipif(_NO_ATHERIS, reason="atheris is not installed here: pip install atheris==3.0.0")
@pytest.mark.parametrize("name", TARGETS)
def test_atheris_finds_nothing(name: str, tmp_path: Path) -> None:
    options = ["--inputs", str(INPUTS), "--found", str(tmp_path)]
    command = [sys.executable, "-m", "tests.fuzz", name, *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    done = re.search(r"Done (\d+) runs", run.stderr)
    assert done is not None
    assert int(done[1]) >= INPUTS


def test_inputs_are_taken_apart_as_they_were_packed() -> None:
    for key, value in ((b"k", b"v"), (None, b"v"), (b"k", None), (None, None), (b"", b"")):
        assert unpacked(packed(key, value, choice=5)) == (5, key, value)
    assert unpacked(b"abc") == (0, None, b"abc")
