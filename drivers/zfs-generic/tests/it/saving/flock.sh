#!/bin/sh
# Like the `flock` of BusyBox, while another process holds the lock at first.
tried=${0%/bin/*}/tried
case $1 in
-n) [ -e "$tried" ] || { : >"$tried"; exit 1; } ;;
-*) echo usage >&2; exit 1 ;;
esac
exec /usr/bin/flock "$@"
