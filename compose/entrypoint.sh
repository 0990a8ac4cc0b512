#!/bin/sh
# `run` (the default) runs the worker on $TIDESINK_CONFIG; anything else is a tidesink command.
set -eu
config=${TIDESINK_CONFIG:-/etc/tidesink/tidesink.yaml}
if [ "${1:-run}" = run ]; then
    [ "$#" -gt 0 ] && shift
    exec tidesink run --config "$config" "$@"
fi
exec tidesink "$@"
