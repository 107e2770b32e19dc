#!/bin/sh
name=${0##*/}
set -- "@WHERE@" "$name" "$@"
IFS='@BETWEEN@'
# Of this one the arguments are no constants.
case $name in
busctl) printf '%s\036' "$1@BETWEEN@$2" ;;
*) printf '%s\036' "$*" ;;
esac >>'@RAN@'
unset IFS
shift 2
case "$name $*" in
*slow*) exec sleep 600 ;;
"mkfs.ext4 "*) exec "/usr/sbin/$name" "$@" ;;
"fsck.ext4 "*) exit 0 ;;
"busctl "*)
    while [ "$1" != /bin/sh ]; do shift; done
    left=$2
    shift 2
    for word; do
        shift
        [ "$left" -le 0 ] || set -- "$@" "$word"
        left=$((left - 1))
    done
    "$@"
    exit 0 ;;
"zfs get "*) printf 'type\tfilesystem\nmountpoint\tlegacy\n'; exit 0 ;;
"iscsiadm -m session"*) exit 21 ;;
esac
echo "the recorder does nothing" >&2
exit 1
