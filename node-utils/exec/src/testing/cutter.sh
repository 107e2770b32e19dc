#!/bin/sh
cd "${0%/*}" || exit 1
n=$(($(cat count) + 1)); echo $n >count
at=never
[ $n -ne "$(cat at)" ] || at=$(cat moment)
cut() { : >'done'; kill -9 $PPID; }
[ "$at" = before ] && [ "$(cat /proc/$PPID/comm)" = sh ] && cut
"$(cat of)" "$@"; code=$?
[ "$at" = after ] && cut
exit $code
