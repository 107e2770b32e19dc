#!/bin/sh
echo "$*" >>"${0%/*}/calls"
row() { printf '%s\t%s\t%s\t%s\n' "$@"; }
show() {
    case $1 in
    tank/v/pvc-1)
        row "$1" type volume -; row "$1" guid 7 -; row "$1" volsize 1073741824 local
        row "$1" volblocksize 16384 -; row "$1" democratic-csi:managed_resource true local
        row "$1" democratic-csi:csi_share_volume_context '{"node_attach_driver":"zfs-local","zfs_asset_name":"tank/v/pvc-1"}' local ;;
    tank/v/pvc-1@*)
        [ -e "${0%/*}/taken" ] || { echo "cannot open '$1': dataset does not exist" >&2; bad=1; return; }
        row "$1" type snapshot -; row "$1" guid 8 -; row "$1" creation 1 -
        row "$1" defer_destroy off -
        row "$1" democratic-csi:csi_snapshot_name "${1#*@}" local
        row "$1" democratic-csi:managed_resource true local
        row "$1" democratic-csi:provision_success true local ;;
    *) echo "cannot open '$1': dataset does not exist" >&2; bad=1 ;;
    esac
}
case "$*" in
"get -Hp -o name,property,value,source "*) shift 5; for n; do show "$n"; done; exit "${bad-0}" ;;
"get -Hp -d 1 -t bookmark -o name,property,value guid,createtxg tank/v/pvc-1")
    printf 'tank/v/pvc-1#%s\t%s\t%s\n' mine guid 1 mine createtxg 1 ;;
"get -Hp -o name,value guid tank/v/pvc-1@"*) printf '%s\t8\n' "$6" ;;
"bookmark tank/v/pvc-1@"*" tank/v/pvc-1#omnibus-csi:"*) exit 1 ;;
"destroy -d tank/v/pvc-1@"*) rm "${0%/*}/taken" ;;
"program -jn tank - s1 tank/v tank/s") cat >/dev/null; printf '{"return":"[]"}\n' ;;
"set volsize=2147483648 tank/v/pvc-1") ;;
"snapshot "*" tank/v/pvc-1@"*) : >"${0%/*}/taken" ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
