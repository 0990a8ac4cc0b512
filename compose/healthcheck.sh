#!/bin/sh
# Healthy while the worker's loop turns. A paused table is shown by `tidesink status`; restarting does not mend it.
exec python -I -S -c '
import sys
from http.client import HTTPConnection

probe = HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=4)
try:
    probe.request("GET", "/healthz")
    answer = probe.getresponse()
    print(answer.read().decode(), end="")
except OSError as error:
    sys.exit(f"the worker does not answer: {error}")
sys.exit(answer.status != 200)
' "${TIDESINK_METRICS_PORT:-9464}"
