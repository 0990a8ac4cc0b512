#!/usr/bin/env bash
# Installs tidesink and one set of extras into .venv, once for each change of what is asked for.
set -euo pipefail
venv=${1:?usage: install.sh VENV EXTRAS}
extras=${2:?usage: install.sh VENV EXTRAS}
here=$(cd "$(dirname "$0")/.." && pwd)
java_works() { "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version >/dev/null 2>&1; }

java_works || extras="$extras,java"
wanted=$(cat "$here/pyproject.toml" "$here/constraints.txt"; echo "$extras $here")
wanted=$(printf %s "$wanted" | cksum)
marker="$venv/.installed-${extras//,/-}"
[ "$(cat "$marker" 2>/dev/null)" = "$wanted" ] && exit 0
echo "installing tidesink[$extras] into ${venv##*/} (a few minutes the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint "$here/constraints.txt" --editable "$here[$extras]"
printf %s "$wanted" >"$marker"
