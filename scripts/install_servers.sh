#!/usr/bin/env bash
# Installs the databases that tests start, where they are missing (Debian, as root). No service is started.
set -euo pipefail

wanted=()
command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null ||
    wanted+=(mariadb-server-core mariadb-client-core)
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || wanted+=(postgresql)
[ ${#wanted[@]} -eq 0 ] && exit 0

export DEBIAN_FRONTEND=noninteractive
# The package's own script would start a cluster of its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
for try in 1 2 3; do
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "${wanted[@]}" && exit 0
    echo "apt-get failed (try $try of 3)" >&2
    sleep 5
done
exit 1
