#!/bin/sh
row() { printf 'tank/%s\t%s\t%s\t%s\n' "$@"; }
name=democratic-csi:csi_volume_name
success=democratic-csi:provision_success
volume() {
    row "$1" type volume -
    row "$1" createtxg "$2" -
    row "$1" guid "10$2" -
    row "$1" creation "$3" -
    row "$1" democratic-csi:managed_resource true local
    row "$1" democratic-csi:volume_context_provisioner_driver zfs-generic-iscsi local
    row "$1" $name "${1#v/}" local
}
case "$*" in
"get -Hp -d 1 -t volume "*" tank/v")
    volume v/pvc-1 1 1000
    volume v/pvc-2 2 "$(($(date +%s) - 5))"
    ;;
"get -Hp -d 2 -t snapshot "*" tank/v")
    volume v/whole@volume-source-for-volume-pvc-9 3 2000
    row v/whole@volume-source-for-volume-pvc-9 $success true 'inherited from tank/v/whole'
    ;;
*" tank/v/pvc-9") echo "cannot open 'tank/v/pvc-9': dataset does not exist" >&2; exit 1 ;;
"get -H -o name type tank") echo tank ;;
"get -Hp -o "*)
    shift 5
    for object; do
        case $object in
        *pvc-1) volume v/pvc-1 1 1000 ;;
        *pvc-2) volume v/pvc-2 2 "$(($(date +%s) - 5))" ;;
        *@*)
            volume "${object#tank/}" 3 2000
            row "${object#tank/}" $success true 'inherited from tank/v/whole'
            ;;
        esac
    done
    ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
