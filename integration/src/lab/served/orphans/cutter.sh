#!/bin/sh
cd "${0%/*}" || exit 1
n=$(($(cat count) + 1)); echo $n >count
/usr/sbin/zfs "$@"; code=$?
[ $n -ne "$(cat at)" ] || { : >'done'; kill -9 $PPID; }
exit $code
