#!/bin/sh
home=${0%/*}
echo "$*" >>"$home/calls"
row() { printf '%s\t%s\t%s\t%s\n' "$@"; }
show() {
    case $1 in
    tank/v/*@*)
        [ -e "$home/taken" ] || { echo "cannot open '$1': dataset does not exist" >&2; bad=1; return; }
        read -r id <"$home/taken"
        row "$1" type snapshot -; row "$1" guid 8 -; row "$1" creation 1 -; row "$1" defer_destroy off -
        row "$1" democratic-csi:csi_snapshot_name "${1#*@}" local
        row "$1" democratic-csi:managed_resource true local
        row "$1" omnibus-csi:group_snapshot "$id" local
        row "$1" democratic-csi:provision_success true local ;;
    *)
        row "$1" type filesystem -; row "$1" guid 7 -; row "$1" mountpoint "/$1" default
        row "$1" democratic-csi:managed_resource true local
        row "$1" democratic-csi:csi_share_volume_context '{"node_attach_driver":"zfs-local","zfs_asset_name":"tank/v/pvc-1"}' local ;;
    esac
}
case "$*" in
"get -Hp -o name,property,value,source "*) shift 5; for n; do show "$n"; done; exit "${bad-0}" ;;
"get -Hp -o name,value guid "*) shift 5; for n; do printf '%s\t8\n' "$n"; done ;;
"program -j tank - tank/v/"*"@"*" democratic-csi:csi_snapshot_name omnibus-csi:group_snapshot")
    cat >/dev/null; printf '{"return":"other"}\n' ;;
"snapshot "*)
    for word; do case $word in omnibus-csi:group_snapshot=*) echo "${word#*=}" >"$home/taken" ;; esac; done ;;
"destroy -d tank/v/"*@*) ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
