#!/bin/sh
host=${0%/bin/*}
for lock in "$host"/locks/*nvmet*; do
    flock -n "$lock" true || { touch "$host/held"; exit 1; }
done
touch "$host/asked"
exec 'FAKE' "$@"
