#!/bin/sh
[ "$1 $2 $3" = '-n -- sh' ] || { echo 'sudo: a password is required' >&2; exit 1; }
shift 2
echo "$*" >>"${0%/bin/*}/sudoed"
exec "$@"
