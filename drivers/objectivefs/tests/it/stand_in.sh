#!/bin/sh
state=STATE
echo "$0 $*" >>"$state/argv"
if [ -e "$state/exit" ]; then cat "$state/says" >&2; exit "$(cat "$state/exit")"; fi
if [ -e "$state/hang" ]; then exec sleep 600; fi
[ "$1" = help ] && exit 0
[ "$SECRET_KEY" = store-secret-key ] || { echo "access denied with $SECRET_KEY" >&2; exit 77; }
admin() { [ "${#OBJECTIVEFS_LICENSE}" -gt 24 ] || exit 64; }
case $1 in
create)
    admin
    [ -n "$OBJECTIVEFS_PASSPHRASE" ] || exit 78
    [ "$2" = -f ] || exit 2
    mkdir "$state/fs/$3" 2>/dev/null || { echo 'ERROR: filesystem already exists' >&2; exit 1; } ;;
destroy)
    admin
    read -r answer
    [ "$answer" = y ] || exit 3
    [ -n "$OBJECTIVEFS_PASSPHRASE" ] || exit 78
    [ "$OBJECTIVEFS_PASSPHRASE" = open-sesame-1001 ] || exit 65
    if [ -e "$state/blind" ] || ! rmdir "$state/fs/$2" 2>/dev/null; then
        echo "$2 does not look like an ObjectiveFS filesystem"; exit 68
    fi ;;
list)
    printf 'NAME\tKIND\tREGION\n'
    printf '%scsi/\tpool\tus-east-1\n' "$OBJECTSTORE"
    for fs in "$state/fs"/*/*; do
        [ -d "$fs" ] || continue
        printf '%s%s\tofs\tus-east-1\n' "$OBJECTSTORE" "${fs#"$state/fs/"}"
    done
    printf '%sother\t-\tus-east-1\n' "$OBJECTSTORE" ;;
*) exit 2 ;;
esac
