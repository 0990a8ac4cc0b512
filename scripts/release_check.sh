#!/usr/bin/env bash
# scripts/release_check.sh VENV: builds sdist and wheel, checks their metadata, and uses the wheel in an empty
# environment: `tidesink decode`, and the demo, which is `tidesink run` with every value checked.
set -euo pipefail
cd "$(dirname "$0")/.."
python="$1/bin/python"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m build --outdir "$work/dist" .
"$python" -m twine check --strict "$work"/dist/*
# Not `grep -q`: it closes the pipe early, and tar would fail.
tar -tzf "$work"/dist/*.tar.gz | grep '/LICENSE$' >/dev/null

scripts/make_venv.sh "$work/venv"
echo "installing the wheel into an empty environment"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt "$(echo "$work"/dist/*.whl)[demo]"
cat >"$work/event.jsonl" <<'JSON'
{"type": "insert", "table": {"schema": "shop", "name": "orders"}, "key": {"id": 1}, "before": null, "after": {"id": 1, "total": "12.50"}, "commit_ts": 470609003012161536, "position": {"topic": "shop", "partition": 0, "offset": 0}}
JSON
echo 'CREATE TABLE shop.orders (id bigint unsigned PRIMARY KEY, total decimal(10,2));' >"$work/orders.sql"
cd "$work"
venv/bin/tidesink --version
options=(--protocol canal-json --enable-tidb-extension --table-definition orders.sql)
venv/bin/tidesink encode "${options[@]}" --input event.jsonl >record.jsonl
venv/bin/tidesink decode "${options[@]}" --input record.jsonl -o json | grep '"total":"12.50"\|"total": "12.50"'
venv/bin/tidesink dev demo
echo "sdist, wheel, decode and run are as they should be"
