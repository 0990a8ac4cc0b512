#!/bin/bash
# Fails unless the broker listens at the address after --bootstrap-server.
exec 3<>"/dev/tcp/${2%%:*}/${2##*:}"
