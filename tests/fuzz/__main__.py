"""``python -m tests.fuzz TARGET --inputs N``: atheris (coverage-guided) on one target, or on ``all``.

It ends with exit code 0 where every input kept the rules, and else with the input's file and a traceback.
``--input FILE`` runs one such file again, without atheris.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import atheris

MOST_SECONDS: Final = 10
MOST_MEMORY_MB: Final = 1500
MOST_BYTES: Final = 1 << 15


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--inputs", type=int, default=20_000, help="how many inputs are tried")
    parser.add_argument("--seed", type=int, default=1, help="another seed tries other inputs")
    parser.add_argument("--found", type=Path, default=Path(), help="where an input that breaks a rule is put")
    parser.add_argument("--input", type=Path, help="run this file alone, as it was found")
    given = parser.parse_args()
    with atheris.instrument_imports(include=["tidesink"]):
        from tests.fuzz.targets import TARGETS
    if given.target == "all":
        return max(_apart(name, given) for name in TARGETS)
    if given.input is not None:
        TARGETS[given.target].run(given.input.read_bytes())
        return 0
    _fuzz(TARGETS[given.target], given)
    return 0


def _apart(name: str, given: argparse.Namespace) -> int:
    """One target in a process of its own, for atheris ends the process it runs in."""
    options = ["--inputs", str(given.inputs), "--seed", str(given.seed), "--found", str(given.found)]
    sys.stdout.write(f"== {name}\n")
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "tests.fuzz", name, *options], check=False).returncode


def _fuzz(target: Any, given: argparse.Namespace) -> None:
    from tests.fuzz.inputs import mutated

    def change(data: bytes, most: int, seed: int) -> bytes:
        return mutated(data, most, seed, atheris.Mutate)

    with tempfile.TemporaryDirectory(prefix="tidesink-fuzz-") as corpus:
        for seed in target.seeds():
            (Path(corpus) / hashlib.sha256(seed).hexdigest()[:24]).write_bytes(seed)
        options = [
            f"-runs={given.inputs}",
            f"-seed={given.seed}",
            f"-timeout={MOST_SECONDS}",
            f"-rss_limit_mb={MOST_MEMORY_MB}",
            f"-max_len={MOST_BYTES}",
            f"-artifact_prefix={given.found}/",
            "-print_final_stats=1",
        ]
        more = {"custom_mutator": change} if target.halves else {}
        atheris.Setup([sys.argv[0], *options, corpus], target.run, **more)
        atheris.Fuzz()


if __name__ == "__main__":
    raise SystemExit(main())
