#!/bin/sh
state=STATE; shift 2
key() { printf %s "$1" | tr / _; }
case "$1 $2" in
'images ls') echo registry.example/hello:1 ;;
'images mount')
    for target; do :; done
    mount -t tmpfs tmpfs "$target" && echo hello >"$target/hello" && : >"$state/$(key "$target")"
    while [ -e "$state/hang" ]; do sleep 0.05; done ;;
'snapshots info')
    [ -e "$state/$(key "$3")" ] || { echo "ctr: snapshot $3 does not exist: not found" >&2; exit 1; }
    printf '{"Labels": {%s}}\n' "$(cat "$state/$(key "$3")")" ;;
'snapshots label')
    for label; do case $label in omnibus-csi/volume=*)
        printf '"omnibus-csi/volume": "%s"' "${label#*=}" >"$state/$(key "$3")" ;; esac; done ;;
'snapshots rm')
    rm "$state/$(key "$3")" 2>/dev/null || { echo "ctr: snapshot $3 does not exist: not found" >&2; exit 1; } ;;
'leases rm') ;;
*) exit 2 ;;
esac
