#!/bin/sh
cd "${0%/*}" || exit 1
n=$(($(cat count) + 1)); echo $n >count
[ $n -eq "$(cat at)" ] && [ "$(cat /proc/$PPID/comm)" = sh ] && kill -9 $PPID
exec /usr/sbin/zfs "$@"
