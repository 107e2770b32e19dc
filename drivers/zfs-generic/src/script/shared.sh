# What shares a dataset besides the property of the connection's protocol: ZFS by the other protocol, an export that is not
# of ZFS, a share of samba that is not of ZFS.
#
# shared.sh PROTOCOL DATASET NAME ZFS...: NAME is what the share of the connection is called in SMB. `used` is said of each
# of them. A host that does not say what it shares is believed. It is the body of a function.
protocol=$1 dataset=$2 name=$3
shift 3

newline='
'
exports=/etc/exports
folder=/etc/exports.d
# The exports of the NFS server on Linux.
table=/var/lib/nfs/etab
shares=/var/lib/samba/usershares
samba=/etc/samba/smb.conf

values=$("$@" get -H -o value mountpoint,sharenfs,sharesmb "$dataset") || return 1
path=${values%%"$newline"*}
values=${values#*"$newline"}
nfs=${values%%"$newline"*} smb=${values#*"$newline"}
case $protocol$nfs in smboff | smb- | nfs*) ;; *) printf 'used the share by sharenfs=%s\n' "$nfs" ;; esac
case $protocol$smb in nfsoff | nfs- | smb*) ;; *) printf 'used the share by sharesmb=%s\n' "$smb" ;; esac
# Blanks are written in another way by each of the files.
case $path in
*[!A-Za-z0-9/._:-]*) return 0 ;;
/?*) ;;
*) return 0 ;;
esac

# Files that name the folder at the start of a line.
rest=$path pattern=
while :; do
    case $rest in
    *.*) pattern=$pattern${rest%%.*}'[.]' rest=${rest#*.} ;;
    *) break ;;
    esac
done
pattern="^\"?$pattern$rest\"?([[:blank:]]|\$)"
set --
for file in "$exports" "$folder"/*.exports; do
    [ "${file##*/}" = zfs.exports ] || [ ! -r "$file" ] || set -- "$@" "$file"
done
# What ZFS exports is in the table, too.
case $nfs in off | -) [ ! -r "$table" ] || set -- "$@" "$table" ;; esac
if [ $# -gt 0 ]; then
    grep -lE -e "$pattern" "$@" 2>/dev/null | while IFS= read -r file; do
        printf 'used the export of %s in %s\n' "$path" "$file"
    done
fi

lower=$(printf %s "$name" | tr '[:upper:]' '[:lower:]')
if [ -r "$shares" ] && [ -x "$shares" ]; then
    grep -rlxF -e "path=$path" "$shares" 2>/dev/null | while IFS= read -r file; do
        file=${file##*/}
        case $file in
        # ZFS has made it.
        "$name" | "$lower") case $smb in off | -) ;; *) continue ;; esac ;;
        esac
        printf 'used the share %s of samba\n' "$file"
    done
fi
[ -r "$samba" ] || samba=/usr/local/etc/smb4.conf
if [ -r "$samba" ]; then
    path=$path LC_ALL=C awk '
        /^[ \t]*\[/ { section = $0; sub(/^[ \t]*\[/, "", section); sub(/\].*/, "", section) }
        tolower($0) ~ /^[ \t]*(path|directory)[ \t]*=/ {
            value = $0
            sub(/^[^=]*=[ \t]*/, "", value)
            gsub(/"/, "", value)
            sub(/[ \t\/]+$/, "", value)
            if (value "" == ENVIRON["path"] "") printf "used the share %s of samba\n", section
        }' "$samba"
fi
return 0
