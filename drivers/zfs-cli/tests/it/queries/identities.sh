#!/bin/sh
echo "$*" >>"${0%/*}/calls"
case "$*" in
"get -Hp -o name,value guid "*) shift 5; for n; do printf '%s\t7\n' "$n"; done | sort -r ;;
esac
