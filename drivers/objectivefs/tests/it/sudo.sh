#!/bin/sh
echo "$0 $*" >>"STATE/argv"
[ "$1" = -n ] || exit 1
names=${2#--preserve-env=}; shift 3
IFS=,
for name in $names; do eval "set -- \"$name=\$$name\" \"\$@\""; done
exec env -i PATH="$PATH" "$@"
