#!/bin/sh
row() { printf 'tank/%s\t%s\t%s\t%s\n' "$@"; }
begin() {
    txg=$((txg + 1)); row "$1" type "${2-filesystem}" -; row "$1" guid "$((1000 + txg))" -; row "$1" createtxg $txg -
}
success=democratic-csi:provision_success; name=democratic-csi:csi_volume_name
case "$*" in
"get -Hp -d 1 -t filesystem "*" tank/v") txg=10
    begin v; row v $success - -; row v $name - -
    begin v/half; row v/half $success - -; row v/half $name half local
    begin v/whole; row v/whole $success true local; row v/whole $name whole local
    begin v/heir; row v/heir $success true 'inherited from tank/v'; row v/heir $name heir received
    begin v/theirs; row v/theirs $success - -; row v/theirs $name - -
    ;;
"get -Hp -d 2 -t snapshot "*" tank/v") txg=20
    for name in v/whole@auto v/whole@volume-source-for-volume-x v/volume-source-for-y@auto; do
        begin $name snapshot
    done
    ;;
"get -Hp -d 2 -t filesystem,volume,snapshot "*" tank/s") txg=30
    for name in s s/empty s/full s/full/one s/cut s/cut@one s/theirs; do
        begin $name
        case $name in s/empty | s/full | s/cut) row $name omnibus-csi:container true local ;;
        s/full/one) row $name omnibus-csi:container true 'inherited from tank/s/full' ;;
        *) row $name omnibus-csi:container - - ;; esac
    done
    ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac
