# Whether the host really shares a dataset, and shares it again.
#
# share.sh MODE PROTOCOL DATASET NAME ZFS... A host that does not say what it shares is believed.
mode=$1 protocol=$2 dataset=$3 name=$4
shift 4
if [ "$mode" = make ]; then
    said=$("$@" share "$dataset" 2>&1) && exit 0
    case $said in *'already shared'*) exit 0 ;; esac
    printf '%s\n' "$said" >&2
    exit 1
fi
set -- "$("$@" get -H -o value mountpoint,mounted "$dataset" 2>/dev/null)"
case $1 in
/*'
yes') path=${1%?yes} ;;
*) exit 0 ;;
esac
case $protocol in
nfs)
    # What ZFS writes on Linux and on FreeBSD; blanks are written in another way there than here.
    list=/etc/exports.d/zfs.exports
    [ -r "$list" ] || list=/etc/zfs/exports
    [ -r "$list" ] || exit 0
    case $path in *[!A-Za-z0-9/._:-]*) exit 0 ;; esac
    found=no
    while read -r shared rest; do
        [ "$shared" != "$path" ] || found=yes
    done <"$list"
    [ $found = yes ] || echo "missing export of $path"
    ;;
smb)
    folder=/var/lib/samba/usershares
    [ -x "$folder" ] || exit 0
    for file in "$folder/$name" "$folder/$(printf %s "$name" | tr '[:upper:]' '[:lower:]')"; do
        [ ! -e "$file" ] || exit 0
    done
    echo "missing usershare $name"
    ;;
esac
exit 0
