#!/usr/bin/env bash
# Makes .venv with pip in it, also where the system's Python comes without ensurepip (Debian's does).
set -euo pipefail
venv=${1:?usage: make_venv.sh DIRECTORY}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-}
wheels=${PYTHON_WHEELS:-/usr/share/python-wheels}

fits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; }
works() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

find_python() {
    for candidate in python3.12 python3.11 python3.13 python3.10 python3; do
        command -v "$candidate" >/dev/null 2>&1 && fits "$candidate" && python=$candidate && return
    done
    refuse
}
refuse() {
    echo "tidesink needs Python 3.10 to 3.13 on the PATH (or PYTHON=/path/to/it)" >&2
    exit 2
}

# Each way leaves a .venv with pip in it, or not; nothing else is touched.
with_ensurepip() { "$python" -m venv "$venv"; }
with_system_pip() { "$python" -m pip --python "$venv/bin/python" install --quiet pip; }
with_debian_wheel() { from_wheel "$wheels"/pip-*.whl --no-index --find-links "$wheels"; }
with_fetched_wheel() {
    local folder wheel
    folder=$(mktemp -d)
    wheel=$("$venv/bin/python" "$here/fetch_pip.py" "$folder") && from_wheel "$wheel"
    rm -rf "$folder"
}
# pip's wheel runs from its own zip.
from_wheel() { [ -f "$1" ] && "$venv/bin/python" "$1/pip" install --quiet "${@:2}" pip; }

if works && fits "$venv/bin/python"; then exit 0; fi
if [ -z "$python" ]; then find_python; else fits "$python" || refuse; fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for way in with_ensurepip with_system_pip with_debian_wheel with_fetched_wheel; do
    rm -rf "$venv"
    [ "$way" = with_ensurepip ] || "$python" -m venv --without-pip "$venv" >>"$log" 2>&1 || continue
    if "$way" >>"$log" 2>&1 && works; then exit 0; fi
done
cat "$log" >&2
echo "cannot make $venv: $python has no ensurepip, and pip could not be had another way." >&2
echo "Install it (Debian: apt-get install python3-venv), then run make again." >&2
exit 2
