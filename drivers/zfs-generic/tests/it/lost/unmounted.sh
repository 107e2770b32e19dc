#!/bin/sh
host=${0%/bin/*}
row() { printf '%s\t%s\t%s\t%s\n' "$@"; }
read -r path <"$host/mountpoint"
read -r key <"$host/keystatus"
case "$*" in
"get -H -o value mountpoint,mounted tank/v/pvc-1") printf '%s\nno\n' "$path" ;;
"get -H -o value keystatus tank/v/pvc-1") echo "$key" ;;
"get -Hp -o name,value guid tank/v/pvc-1") printf 'tank/v/pvc-1\t7\n' ;;
"get -Hp -o name,property,value,source "*)
    quota=1048576
    [ ! -e "$host/quota" ] || read -r quota <"$host/quota"
    row tank/v/pvc-1 type filesystem -
    row tank/v/pvc-1 guid 7 -
    row tank/v/pvc-1 createtxg 7 -
    row tank/v/pvc-1 refquota "$quota" local
    row tank/v/pvc-1 mountpoint "$path" local
    row tank/v/pvc-1 sharenfs on local
    row tank/v/pvc-1 democratic-csi:csi_share_volume_context '{"node_attach_driver":"nfs","server":"192.0.2.1","share":"/tank/v/pvc-1"}' local
    ;;
"set refquota="*" tank/v/pvc-1") quota=${2#*=}; echo "$quota" >"$host/quota" ;;
"share tank/v/pvc-1") echo "cannot mount '/tank/v/pvc-1': encryption key not loaded" >&2; exit 1 ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
