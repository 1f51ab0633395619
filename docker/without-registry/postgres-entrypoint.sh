#!/bin/sh
# What the postgres image's own entry point does of it: a database on the first start.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --encoding=UTF8 --locale=C.UTF-8 --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-host=scram-sha-256 --auth-local=trust
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    printf 'CREATE DATABASE "%s";\n' "$POSTGRES_DB" | postgres --single -j postgres
fi
exec "$@" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
