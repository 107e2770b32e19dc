#!/bin/sh
row() { printf '%s\t%s\t%s\t%s\n' "$@"; }
context=democratic-csi:csi_share_volume_context
show() {
    id=${1#tank/v/}
    row "$1" type volume -
    row "$1" guid "${id#pvc-}" -
    row "$1" createtxg "${id#pvc-}" -
    row "$1" volsize 1048576 local
    row "$1" democratic-csi:iscsi_assets_name "csi-$id" local
    row "$1" $context '{"node_attach_driver":"iscsi","portal":"192.0.2.1:3260","iqn":"iqn.2003-01.org.example:csi-'"$id"'","lun":"0"}' local
}
case "$*" in
"get -Hp -d 1 -t volume "*)
    for id in 1 2 3; do
        show tank/v/pvc-$id
    done
    ;;
"get -Hp -o name,value guid tank/v/pvc-"*) printf '%s\t%s\n' "$6" "${6#tank/v/pvc-}" ;;
"get -Hp -o name,property,value,source "*)
    shift 5
    for name; do show "$name"; done
    ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
