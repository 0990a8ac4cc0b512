#!/usr/bin/env bash
# scripts/container_images.sh FOLDER: build tidesink:latest, and stand-ins of the images that it and compose/stack.yaml name where no registry serves them.
# The base is made of Debian's packages, the servers of the jars of `tidesink dev` (tests/image). FOLDER is for files of the builds.
set -euo pipefail
work=$1
# Docker's clients from version 23 on need the plugin buildx for BuildKit.
docker=docker
if ! docker buildx version >/dev/null 2>&1 && [ -x /usr/bin/docker ]; then docker=/usr/bin/docker; fi

build() { DOCKER_BUILDKIT=1 "$docker" build -q "$@" >/dev/null; }
is_here() { docker image inspect "$1" >/dev/null 2>&1 || docker pull -q "$1" >/dev/null 2>&1; }
image_of() { sed -n "s|^ *image: \($1[^ ]*\).*|\1|p" compose/stack.yaml | head -1; }

# python:3.11-slim-bookworm is Debian bookworm, whose Python is 3.11, with this machine's authorities.
debian_base() {
    command -v mmdebstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null; }
    mmdebstrap -q --variant=minbase --include=ca-certificates,netbase,tzdata,python3,python3-venv \
        --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
        --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python"' \
        --customize-hook='copy-in /usr/local/share/ca-certificates /usr/local/share' \
        --customize-hook='chroot "$1" update-ca-certificates >/dev/null 2>&1' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
        bookworm - /etc/apt/sources.list.d/debian.sources 2>/dev/null |
        docker import -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' - "$1" >/dev/null
}

# server NAME IMAGE PYTHON: the image of a server from tests/image/NAME and the folder of jars that PYTHON gives.
server() {
    is_here "$2" && return
    cp -r "tests/image/$1" "$work/$1"
    cp -r "$(.venv/bin/python -c "from tidesink.dev.stack import *; print($3)")" "$work/$1/jars"
    build -t "$2" "$work/$1"
}

base=$(sed -n 's/^ARG PYTHON_IMAGE=//p' compose/Dockerfile)
is_here "$base" || debian_base "$base"
build -f compose/Dockerfile -t tidesink:latest .
echo "tidesink:latest has $(($(docker image inspect tidesink:latest --format '{{.Size}}') / 1000000)) MB"
server broker "$(image_of apache/kafka)" "broker_jars()"
server registry "$(image_of apicurio/)" "registry_runner().parent"
