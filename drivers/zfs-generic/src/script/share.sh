# Whether the host really shares a dataset, and shares it again.
#
# share.sh MODE PROTOCOL DATASET NAME SUDO ZFS... A host that does not say what it shares is believed; what
# is not mounted is shared by none. It is the body of a function.
mode=$1 protocol=$2 dataset=$3 name=$4 sudo=$5
shift 5

# The exports of the NFS server on Linux; ZFS before 2.0 keeps no list of its own.
table=/var/lib/nfs/etab

newline='
'
tab='	'

# listing PATH FILE...: those of the files that name a folder. Blanks are written in another way there than here.
# One process, however many folders they name.
listing() {
    rest=$1 pattern=
    shift
    while :; do
        case $rest in
        *.*) pattern=$pattern${rest%%.*}'[.]' rest=${rest#*.} ;;
        *) break ;;
        esac
    done
    lists=$(grep -lE -e "^$pattern$rest([[:blank:]]|\$)" "$@" 2>/dev/null)
    # A host that does not say is believed.
    [ $? -le 1 ]
}

# seen PROPERTY: what the list of commands that this one is in has just seen of the dataset, in `$it`.
seen() {
    it=$newline${omnibus_seen-}
    case $it in
    *"$newline$dataset$tab$1$tab"*) ;;
    *) return 1 ;;
    esac
    it=${it#*"$newline$dataset$tab$1$tab"}
    it=${it%%"$newline"*}
    it=${it%"$tab"*}
}

# Whether the server has forgotten what the list of ZFS has: then ZFS says that it is shared.
forgotten() {
    [ "$protocol" = nfs ] && [ -r "$table" ] || return 1
    path=$("$@" get -H -o value mountpoint "$dataset" 2>/dev/null)
    case $path in /*) ;; *) return 1 ;; esac
    case $path in *[!A-Za-z0-9/._:-]*) return 1 ;; esac
    listing "$path" "$table" && [ -z "$lists" ]
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

# is_of_another PATH: whether the share of that name is of another folder, which is said then. Names of shares ignore
# case, and have `_` for each `/` and `-`. Without a path the folder is known by its last name alone.
is_of_another() {
    folder=/var/lib/samba/usershares
    [ "$protocol" = smb ] && [ -x "$folder" ] || return 1
    lower=$name
    case $name in *[A-Z]*) lower=$(printf %s "$name" | tr '[:upper:]' '[:lower:]') ;; esac
    file=$folder/$name
    [ -r "$file" ] || file=$folder/$lower
    [ -r "$file" ] || return 1
    while IFS= read -r line; do
        case $line in
        path=*)
            line=${line#path=}
            [ "$line" != "${1:-${line%/*}/${dataset##*/}}" ] || return 1
            echo "foreign $line"
            return 0
            ;;
        esac
    done <"$file"
    return 1
}

if [ "$mode" = make ]; then
    zfs_says share "$@" && return 0
    case $said in
    *'already shared'*)
        forgotten "$@" || return 0
        # No client has access, so none loses it.
        zfs_says unshare "$@" && zfs_says share "$@" && return 0
        ;;
    esac
    printf '%s\n' "$said" >&2
    return 1
fi
if seen mounted; then
    mounted=$it
    seen mountpoint || return 0
    path=$it
else
    # It was looked for, and is not there.
    case $newline${omnibus_seen-} in
    "$newline" | *"$newline$dataset$tab"*) ;;
    *)
        is_of_another
        return 0
        ;;
    esac
    path=$("$@" get -H -o value mountpoint,mounted "$dataset" 2>/dev/null)
    mounted=${path##*"$newline"}
    path=${path%"$newline"*}
fi
case $mounted$path in
yes/*) ;;
no/*)
    echo "missing mount at $path"
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
    set --
    for file in "$list" "$table"; do
        [ ! -r "$file" ] || set -- "$@" "$file"
    done
    [ $# -gt 0 ] || return 0
    listing "$path" "$@" || return 0
    for file; do
        case $newline$lists$newline in
        *"$newline$file$newline"*) ;;
        *)
            echo "missing export of $path"
            return 0
            ;;
        esac
    done
    ;;
smb)
    ! is_of_another "$path" || return 0
    [ -x "$folder" ] || return 0
    [ ! -e "$folder/$name" ] && [ ! -e "$folder/$lower" ] || return 0
    echo "missing usershare $lower"
    ;;
esac
return 0
