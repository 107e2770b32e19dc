#!/bin/sh
# shellcheck disable=SC2016 # what looks like a variable is to arrive as it is
[ "$KEY" = 'a "b'\''$(c)' ] || exit 66
[ "$1" != '$x' ] || { printf '%s' "$1" >"$2/said"; exit 64; }
[ "$1" != bad ] || { echo "the passphrase is wrong" >&2; exit 65; }
[ "$1" != slow ] || exec sleep 600
setsid sleep 600 </dev/null >/dev/null 2>&1 &
echo $! >"$2/daemon"
