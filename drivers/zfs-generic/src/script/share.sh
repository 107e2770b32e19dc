# Whether the host really shares a dataset, and shares it again.
#
# share.sh MODE PROTOCOL DATASET NAME SUDO ZFS... A host that does not say what it shares is believed; what
# is not mounted is shared by none. It is the body of a function.
mode=$1 protocol=$2 dataset=$3 name=$4 sudo=$5
shift 5

# What the server of NFS on Linux has been told; ZFS before 2.0 keeps no list of its own.
table=/var/lib/nfs/etab

# listed FILE PATH: whether a list names a folder. Blanks are written in another way there than here.
listed() {
    while read -r shared rest; do
        [ "$shared" != "$2" ] || return 0
    done <"$1"
    return 1
}

# Whether the server has forgotten what the list of ZFS has: then ZFS says that it is shared.
forgotten() {
    [ "$protocol" = nfs ] && [ -r "$table" ] || return 1
    path=$("$@" get -H -o value mountpoint "$dataset" 2>/dev/null)
    case $path in /*) ;; *) return 1 ;; esac
    case $path in *[!A-Za-z0-9/._:-]*) return 1 ;; esac
    ! listed "$table" "$path"
}

# zfs_says VERB ZFS...: what ZFS says to it is in `said`. On Linux only root tells the servers, whatever
# `zfs allow` says, so that sudo is tried where the login may not.
zfs_says() {
    verb=$1
    shift
    said=$("$@" "$verb" "$dataset" 2>&1) && return 0
    case $said in
    *'ermission denied'* | *'nsufficient privileges'*)
        [ "$1" != "$sudo" ] && [ "$(id -u)" != 0 ] && command -v "$sudo" >/dev/null 2>&1 || return 1
        by_sudo=$("$sudo" -n -- "$@" "$verb" "$dataset" 2>&1) && return 0
        said="$said; $by_sudo"
        ;;
    esac
    return 1
}

if [ "$mode" = make ]; then
    zfs_says share "$@" && return 0
    case $said in
    *'already shared'*)
        forgotten "$@" || return 0
        # Nobody is in, so nobody is put out.
        zfs_says unshare "$@" && zfs_says share "$@" && return 0
        ;;
    esac
    printf '%s\n' "$said" >&2
    return 1
fi
seen=$("$@" get -H -o value mountpoint,mounted "$dataset" 2>/dev/null)
case $seen in
/*'
yes') path=${seen%?yes} ;;
/*'
no')
    echo "missing mount at ${seen%?no}"
    # Without its key it cannot be mounted, whatever is tried here. ZFS before 0.8 has no such property.
    [ "$("$@" get -H -o value keystatus "$dataset" 2>/dev/null)" != unavailable ] || echo "blocked key of $dataset"
    return 0
    ;;
*) return 0 ;;
esac
case $protocol in
nfs)
    case $path in *[!A-Za-z0-9/._:-]*) return 0 ;; esac
    # What ZFS writes on Linux and on FreeBSD.
    list=/etc/exports.d/zfs.exports
    [ -r "$list" ] || list=/etc/zfs/exports
    for file in "$list" "$table"; do
        if [ -r "$file" ] && ! listed "$file" "$path"; then
            echo "missing export of $path"
            return 0
        fi
    done
    ;;
smb)
    folder=/var/lib/samba/usershares
    [ -x "$folder" ] || return 0
    for file in "$folder/$name" "$folder/$(printf %s "$name" | tr '[:upper:]' '[:lower:]')"; do
        [ ! -e "$file" ] || return 0
    done
    echo "missing usershare $name"
    ;;
esac
return 0
