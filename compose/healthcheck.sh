#!/bin/sh
# Healthy while the worker's loop turns. A paused table is shown by `tidesink status`; restarting does not mend it.
exec tidesink status --config "${TIDESINK_CONFIG:-/etc/tidesink/tidesink.yaml}" --alive-within "${TIDESINK_ALIVE_WITHIN:-60}"
