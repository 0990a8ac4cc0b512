#!/usr/bin/env bash
# Installs tidesink and one set of extras into .venv, once for each change of what is asked for.
set -euo pipefail
venv=${1:?usage: install.sh VENV EXTRAS}
extras=${2:?usage: install.sh VENV EXTRAS}
here=$(cd "$(dirname "$0")/.." && pwd)

install() {
    local as=shown
    # A terminal gets pip's own progress bars, a log what is downloaded.
    [ -t 1 ] || as=told
    echo "installing tidesink[$1] into ${venv##*/} (a few minutes the first time)"
    "$as" "$venv/bin/python" -m pip install --disable-pip-version-check \
        --constraint "$here/constraints.txt" --editable "$here[$1]"
}
shown() { "$@"; }
told() { "$@" | awk '/^ *(Downloading|Building wheels|Installing collected)/ { print substr($0, 1, 100); fflush() }'; }
has_java() { "$venv/bin/python" -c 'from tidesink.sinks.spark.jvm import find_java; find_java()' 2>/dev/null; }

wanted=$(cksum "$here/pyproject.toml" "$here/constraints.txt" "$venv/pyvenv.cfg"; echo "$extras $here")
marker="$venv/.installed-${extras//,/-}"
if [ "$(cat "$marker" 2>/dev/null)" != "$wanted" ]; then
    install "$extras"
    printf %s "$wanted" >"$marker"
fi
# A Java that Spark runs on, or one from PyPI.
has_java || install java
