#!/usr/bin/env bash
# scripts/test.sh VENV [PYTEST ARGUMENTS]: the tests, as two runs side by side, since much of a test is waiting.
# Each run has a Spark session and servers of its own. The second's output comes when both are done.
set -uo pipefail
# A shell has its background jobs ignore Ctrl-C, unless it controls jobs: whoever waits sends it.
set -m
cd "$(dirname "$0")/.."
python="$1/bin/python"
shift
# By their time on two cores, about half of all: the other half is end-to-end and unit tests. Their Spark generates no code (tests/sessions.py).
beside=(tests/contracts tests/spark tests/golden tests/cli tests/properties)
log="$(mktemp)"
interpreted=1
[ -z "${TIDESINK_TEST_ALL:-}" ] || interpreted=
TIDESINK_TEST_INTERPRETED="$interpreted" "$python" -m pytest "${beside[@]}" "$@" >"$log" 2>&1 &
other=$!
trap 'kill -INT "$other" 2>/dev/null && wait "$other"; rm -f "$log"' EXIT
"$python" -m pytest tests "${beside[@]/#/--ignore=}" "$@"
failed=$?
wait "$other" || failed=$?
cat "$log"
exit "$failed"
