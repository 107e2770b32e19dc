# What shares a dataset besides the property of the connection's protocol: ZFS by the other protocol, an export that is not
# of ZFS, a share of samba that is not of ZFS.
#
# shared.sh PROTOCOL DATASET NAME ZFS...: NAME is what the share of the connection is called in SMB. `used` is said of each
# of them, and `unseen` of what was not looked at, and why. It is the body of a function.
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
case $path in
/*[!A-Za-z0-9/._:-]*)
    # Blanks are written in another way by each of the files.
    echo 'unseen its mountpoint has other characters than letters, digits and /._:-'
    return 0
    ;;
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
[ ! -d "$folder" ] || [ -r "$folder" ] || printf 'unseen the login may not read %s\n' "$folder"
for file in "$exports" "$folder"/*.exports "$table"; do
    [ -e "$file" ] || continue
    # What ZFS exports is in the table, too.
    case $file/$nfs in
    */zfs.exports/*) continue ;;
    "$table/off" | "$table/-") ;;
    "$table"/*) continue ;;
    esac
    grep -qE -e "$pattern" "$file" 2>/dev/null
    case $? in
    0) printf 'used the export of %s in %s\n' "$path" "$file" ;;
    1) ;;
    *) printf 'unseen the login may not read %s\n' "$file" ;;
    esac
done

lower=$(printf %s "$name" | tr '[:upper:]' '[:lower:]')
if [ -e "$shares" ]; then
    found=$(grep -rlxF -e "path=$path" "$shares" 2>/dev/null)
    # Samba lets only a group read the folder.
    [ $? -lt 2 ] || printf 'unseen the login may not read all of %s\n' "$shares"
    while [ -n "$found" ]; do
        file=${found%%"$newline"*}
        found=${found#"$file"}
        found=${found#"$newline"}
        file=${file##*/}
        case $file in
        # ZFS has made it.
        "$name" | "$lower") case $smb in off | -) ;; *) continue ;; esac ;;
        esac
        printf 'used the share %s of samba\n' "$file"
    done
fi
[ -e "$samba" ] || samba=/usr/local/etc/smb4.conf
if [ -e "$samba" ]; then
    path=$path LC_ALL=C awk '
        /^[ \t]*\[/ { section = $0; sub(/^[ \t]*\[/, "", section); sub(/\].*/, "", section) }
        tolower($0) ~ /^[ \t]*(path|directory)[ \t]*=/ {
            value = $0
            sub(/^[^=]*=[ \t]*/, "", value)
            gsub(/"/, "", value)
            sub(/[ \t\/]+$/, "", value)
            if (value "" == ENVIRON["path"] "") printf "used the share %s of samba\n", section
        }' "$samba" 2>/dev/null || printf 'unseen the login may not read %s\n' "$samba"
fi
return 0
