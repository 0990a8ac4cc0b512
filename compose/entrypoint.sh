#!/bin/sh
# `run` (the default) runs the worker on $TIDESINK_CONFIG; anything else is a tidesink command.
set -eu
if ! getent passwd "$(id -u)" >/dev/null; then
    # OpenShift gives a user without an account, and Hadoop asks the system for the user's name.
    home=$(mktemp -d)
    echo "tidesink:x:$(id -u):$(id -g)::$home:/usr/sbin/nologin" >"$home/passwd"
    export HOME="$home" LD_PRELOAD=libnss_wrapper.so NSS_WRAPPER_PASSWD="$home/passwd" NSS_WRAPPER_GROUP=/etc/group
fi
if [ "${1:-run}" = run ]; then
    [ "$#" -gt 0 ] && shift
    exec tidesink run --config "${TIDESINK_CONFIG:-/etc/tidesink/tidesink.yaml}" "$@"
fi
exec tidesink "$@"
