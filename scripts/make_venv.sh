#!/usr/bin/env bash
# Makes .venv with pip in it, also where the system's Python comes without ensurepip (Debian's does).
set -euo pipefail
venv=${1:?usage: make_venv.sh DIRECTORY}
python=${PYTHON:-}

if [ -z "$python" ]; then
    for candidate in python3.12 python3.11 python3.13 python3.10 python3; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null || continue
        python=$candidate
        break
    done
fi
[ -n "$python" ] || { echo "tidesink needs Python 3.10 to 3.13 on the PATH (or PYTHON=/path/to/it)" >&2; exit 2; }

works() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

works && exit 0
rm -rf "$venv"
"$python" -m venv "$venv" >/dev/null 2>&1 || true
if ! works; then
    rm -rf "$venv"
    "$python" -m venv --without-pip "$venv" >/dev/null 2>&1 || true
    # A system pip can install into another interpreter.
    "$python" -m pip --python "$venv/bin/python" install --quiet pip >/dev/null 2>&1 || true
fi
if ! works; then
    # pip's wheel can run from its own zip: whoever has one (python3-pip-whl) needs nothing else.
    for wheel in /usr/share/python-wheels/pip-*.whl; do
        [ -f "$wheel" ] && "$venv/bin/python" "$wheel/pip" install --quiet --no-index --find-links "${wheel%/*}" pip || true
    done
fi
if ! works; then
    rm -rf "$venv"
    if command -v virtualenv >/dev/null 2>&1; then virtualenv --quiet --python "$python" "$venv" || true
    elif command -v uv >/dev/null 2>&1; then uv venv --quiet --seed --python "$python" "$venv" || true
    elif command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        echo "this Python has no ensurepip: installing python3-venv" >&2
        apt-get install -qq -y --no-install-recommends python3-venv >/dev/null 2>&1 \
            || { apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null; }
        "$python" -m venv "$venv"
    fi
fi
works || {
    echo "cannot make $venv: this Python has neither ensurepip nor pip." >&2
    echo "Install one of them (Debian: apt-get install python3-venv), then run make again." >&2
    exit 2
}
